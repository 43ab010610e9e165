//! Backpressure as the policy file states it: whose overload counts, and how heavy flows are slowed down then.
//!
//! Why: the engine's control loop, `check` and the simulator need the same typed values.
//! From: MIMIC §III and §V; where the paper leaves a number open, what `docs/policy.md`, "backpressure", gives as default.
//! Not here: reading the keys (`read`), finding heavy flows (`queues`), and slowing them down (the engine).
//! Invariant: `release < threshold <= 100%`, and a meter's lifetime covers at least four polls.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use plimsoll_units::{BitRate, Bytes, Span};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

/// When and how heavy flows are slowed down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Press {
    /// Whose overload it is about (MI-M1).
    pub watch: Watch,
    /// CPU capacity of what is watched, in thousandths of a core, at least 1. When absent: one core, and for a cgroup its
    /// `cpu.max` where that is set.
    pub cores: Option<u32>,
    /// Load at which overload begins, as a part of `cores` (MI-M1).
    #[schemars(with = "String")]
    pub threshold: Part,
    /// Load below which overload ends; less than `threshold` (MI-M1).
    #[schemars(with = "String")]
    pub release: Part,
    /// Time from one look at the load to the next, 100 µs to 1 s (MI-M1).
    pub poll: Span,
    /// A flow is slowed down if it sends more than this part of the packets of all reported heavy hitters (MI-M8).
    #[schemars(with = "String")]
    pub part: Part,
    /// How a flow is slowed down (MI-M9 to M12, M19).
    pub mode: PressMode,
    /// Rate to which each chosen flow is slowed down (MI-M12, M17, M18).
    pub rate: PressRate,
    /// Time after its last refresh for which a meter stays installed, 100 ms to 60 s and at least four polls (MI-M12).
    pub lifetime: Span,
    /// Burst of a meter, at least [`Press::LEAST_BURST`] (MI-M12).
    pub burst: Bytes,
    /// Flows that may be slowed down at a time, 1 to [`Press::MOST_FLOWS`].
    pub flows: u32,
}

impl Press {
    /// Lowest rate to which a flow is held: no host can stop a flow.
    pub const LEAST_RATE: BitRate = BitRate::mbps(1);
    /// Least burst that may be stated (MI-M12). A meter itself holds at least one longest frame, which is a little more.
    pub const LEAST_BURST: Bytes = Bytes::new(64_000);
    const LEAST_WAITING: Bytes = Bytes::kib(256);
    /// Greatest burst of a meter.
    pub const MOST_BURST: Bytes = Bytes::new(64_000_000);
    /// Most flows that a policy may have slowed down at a time.
    pub const MOST_FLOWS: u32 = 4_096;
    /// Shortest and longest time between two looks at the load.
    pub const POLLS: [Span; 2] = [Span::micros(100), Span::secs(1)];
    /// Shortest and longest lifetime of a meter.
    pub const LIFETIMES: [Span; 2] = [Span::millis(100), Span::secs(60)];
    /// Polls that a meter outlives at least, so that a few lost refreshes do not remove it.
    pub const LEAST_POLLS: u64 = 4;

    /// What a policy with nothing but `watch` gets.
    #[must_use]
    pub fn new(watch: Watch) -> Self {
        Self {
            watch,
            cores: None,
            threshold: Part::percent(80),
            release: Self::release_for(Part::percent(80)),
            poll: Span::millis(1),
            part: Part::percent(10),
            mode: PressMode::default(),
            rate: PressRate::default(),
            lifetime: Span::secs(3),
            burst: Bytes::kib(128),
            flows: 256,
        }
    }

    /// In the mode `drop`, the bytes of a flow of this host's own tenants that wait before what is beyond is dropped: the burst, or
    /// four of the longest segments.
    #[must_use]
    pub fn most_waiting(&self) -> Option<Bytes> {
        (self.mode == PressMode::Drop).then(|| self.burst.max(Self::LEAST_WAITING))
    }

    /// The load below which overload ends where none is stated: seven eighths of the threshold, rounded down to 0.1 %, and at most
    /// 70 %.
    #[must_use]
    pub const fn release_for(threshold: Part) -> Part {
        match threshold.0 * 7 / 8 {
            0 => Part(1),
            part if part < 700 => Part(part),
            _ => Part::percent(70),
        }
    }
}

/// Whose overload leads to backpressure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Watch {
    /// The core of the engine itself.
    Engine,
    /// The CPU time that it takes to deliver packets to a tenant, as the engine measures it.
    Tenant(String),
    /// The CPU time of a cgroup, from its `cpu.stat`: an absolute path below `/sys/fs/cgroup`, without `..`.
    Cgroup(PathBuf),
    /// The CPU time of these threads, such as a virtual machine's vCPUs. Not empty, each above zero.
    Pids(Vec<u32>),
}

/// The value as a policy file states it.
impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine => f.write_str("engine"),
            Self::Tenant(name) => write!(f, "{{tenant: {name}}}"),
            Self::Cgroup(path) => write!(f, "{{cgroup: {}}}", path.display()),
            Self::Pids(pids) => {
                let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
                write!(f, "{{pids: [{}]}}", pids.join(", "))
            }
        }
    }
}

/// How a flow is slowed down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PressMode {
    /// CE is set on one of K packets, where the flow has ECT (MIMIC's BK-VM; MI-M9, M10, M17).
    Mark,
    /// A token bucket at the source's host, installed by a notification (BK-NIC; MI-M11, M12). Changes no packet; where a
    /// tenant of a host with the bucket sends more, its packets wait.
    #[default]
    Meter,
    /// CE as for [`PressMode::Mark`], and at the same time a token bucket as for [`PressMode::Meter`]; a flow without ECT gets
    /// the bucket alone (BK-VM&NIC; MI-M13, M14).
    MarkAndMeter,
    /// Packets beyond the rate are dropped at this host (MI-M19). Of this host's own tenants some wait first.
    Drop,
    /// The receive window in the flow's acknowledgements is lowered to what its rate needs (MI-M19).
    Window,
}

impl PressMode {
    /// Every mode with its name in a policy file.
    pub const ALL: [(&'static str, Self); 5] = [
        ("mark", Self::Mark),
        ("meter", Self::Meter),
        ("mark_and_meter", Self::MarkAndMeter),
        ("drop", Self::Drop),
        ("window", Self::Window),
    ];

    /// Whether packets get CE.
    #[must_use]
    pub const fn marks(self) -> bool {
        matches!(self, Self::Mark | Self::MarkAndMeter)
    }

    /// Whether flows are metered from the start, and not only where nothing else works.
    #[must_use]
    pub const fn meters(self) -> bool {
        matches!(self, Self::Meter | Self::MarkAndMeter)
    }
}

impl fmt::Display for PressMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mark => "mark",
            Self::Meter => "meter",
            Self::MarkAndMeter => "mark_and_meter",
            Self::Drop => "drop",
            Self::Window => "window",
        })
    }
}

/// The rate to which a flow is slowed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PressRate {
    /// What brings the load below `release`.
    Auto {
        /// No flow is slowed down further than this.
        least: BitRate,
    },
    /// This rate for each flow.
    Fixed(BitRate),
}

impl Default for PressRate {
    /// As low as the load demands, but 100 Mb/s at least: 99 % of flows stay below it (MI-C3).
    fn default() -> Self {
        Self::Auto { least: BitRate::mbps(100) }
    }
}

impl fmt::Display for PressRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto { least } => write!(f, "auto, at least {least}"),
            Self::Fixed(rate) => rate.fmt(f),
        }
    }
}

/// Whether backpressure may change the ECN bits and TCP flags of a tenant's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ecn {
    /// It may, where the mode is `mark`, `mark_and_meter` or `window`.
    #[default]
    Allowed,
    /// It never does: a flow to or from this tenant is metered instead (MI-S1).
    Untouched,
    /// It may; and for the tenant's TCP connections this host takes the part of an end that does not use ECN (MI-M13).
    #[serde(rename = "mediate")]
    Mediated(Mediate),
}

/// The meter to which mediation holds a flow of the tenant once its receiver reports a mark (MI-M13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, JsonSchema)]
pub struct Mediate {
    /// The rate.
    pub rate: BitRate,
    /// Time after the last report for which the meter stays, within [`Press::LIFETIMES`].
    pub lifetime: Span,
    /// Its burst, from [`Press::LEAST_BURST`] to [`Press::MOST_BURST`].
    pub burst: Bytes,
}

impl Default for Mediate {
    /// 850 Mb/s, 3 s, 128 KiB (MI-M12).
    fn default() -> Self {
        Self { rate: BitRate::mbps(850), lifetime: Span::secs(3), burst: Bytes::kib(128) }
    }
}

impl Ecn {
    /// The meter of mediation, where the tenant's connections are mediated.
    #[must_use]
    pub const fn mediate(self) -> Option<Mediate> {
        match self {
            Self::Mediated(mediate) => Some(mediate),
            Self::Allowed | Self::Untouched => None,
        }
    }
}

impl fmt::Display for Ecn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed => f.write_str("allowed"),
            Self::Untouched => f.write_str("untouched"),
            Self::Mediated(Mediate { rate, lifetime, burst }) => {
                write!(f, "mediated ({rate}, lifetime {lifetime}, burst {burst})")
            }
        }
    }
}

/// A part of a whole, in thousandths: above zero, and at most all of it.
///
/// ```
/// use plimsoll_policy::Part;
///
/// let part: Part = "12.5%".parse().expect("a part");
/// assert_eq!((part.to_string().as_str(), part.per_mille()), ("12.5%", 125));
/// assert_eq!("0.125".parse(), Ok(part));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part(u32);

/// The whole, in thousandths.
const WHOLE: u32 = 1_000;

impl Part {
    /// A number of hundredths, 1 to 100.
    const fn percent(percent: u32) -> Self {
        assert!(0 < percent && percent <= 100, "a part of a whole");
        Self(percent * (WHOLE / 100))
    }

    /// Thousandths of the whole, 1 to 1,000.
    #[must_use]
    pub const fn per_mille(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 10, self.0 % 10) {
            (percent, 0) => write!(f, "{percent}%"),
            (percent, tenth) => write!(f, "{percent}.{tenth}%"),
        }
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A text that is no part of a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no part such as `80%` or `0.8`, above zero and at most `100%`, in steps of `0.1%`")]
pub struct PartError;

impl FromStr for Part {
    type Err = PartError;

    /// Reads `80%`, `12.5%` or `0.8`.
    fn from_str(text: &str) -> Result<Self, PartError> {
        let (number, whole) = match text.strip_suffix('%') {
            Some(percent) => (percent.trim_end(), WHOLE / 100),
            None => (text, WHOLE),
        };
        if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return Err(PartError);
        }
        let thousandths = number.parse::<f64>().map_err(|_| PartError)? * f64::from(whole);
        let part = thousandths.round();
        // `0.57` of 1,000 is 569.999... in binary.
        let exact = (thousandths - part).abs() < 1e-6;
        if exact && (1.0..=f64::from(WHOLE)).contains(&part) { Ok(Self(part as u32)) } else { Err(PartError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_a_percentage_or_a_fraction() {
        for (text, thousandths, shown) in [
            ("80%", 800, "80%"),
            ("0.8", 800, "80%"),
            ("100%", 1_000, "100%"),
            ("1", 1_000, "100%"),
            ("12.5 %", 125, "12.5%"),
            ("0.57", 570, "57%"),
            ("0.1%", 1, "0.1%"),
        ] {
            let part: Part = text.parse().unwrap_or_else(|_| panic!("{text}"));
            assert_eq!((part.per_mille(), part.to_string().as_str()), (thousandths, shown), "{text}");
        }
        let wrong = "% 0% 0 101% 1.1 80 -1% 1e-1 nan inf 1.2.3 half 0.05% 12.34% .";
        for text in wrong.split(' ').chain([""]) {
            assert_eq!(text.parse::<Part>(), Err(PartError), "{text}");
        }
    }

    #[test]
    fn what_is_shown_reads_back() {
        for thousandths in 1..=WHOLE {
            assert_eq!(Part(thousandths).to_string().parse(), Ok(Part(thousandths)));
        }
    }
}
