//! Backpressure: it counts the flows of tenants that the file has, and what it slows them down by makes sense.
//!
//! Why: a name that is misspelt would leave a tenant unwatched, and an overload that never ends would slow flows down forever.
//! From: `docs/policy.md`, "backpressure".
//! Not here: counting (`queues`), and slowing flows down (the engine).
//! Invariant: the tenants are in the order of the file, each once.

use plimsoll_document::{Located, Mark, Name, nearest};
use plimsoll_units::{BitRate, PacketRate};

use crate::config::Backpressure;
use crate::law::{Law, Problem, Problems};
use crate::press::{Press, PressMode, PressRate, Watch};
use crate::read::syntax::{BackpressureEntry, PressEntry, TenantEntry, WatchEntry};

/// From this rate on a flow is a heavy hitter, unless stated: 99 % of flows stay below it with 1,250 bytes a packet
/// (MIMIC §II: 100 Mb/s).
const HEAVY: u64 = 10_000;
/// A core, in thousandths, times a threshold of 100 %, in thousandths.
const ONE_CORE: u64 = 1_000 * 1_000;
/// Tenants that a message names.
const MOST_NAMED: usize = 8;

/// `link`: the uplink's rate; `fleet`: whether feedback reaches the hosts of a fleet; `busy`: whether the engine's thread never sleeps.
pub(crate) fn judge(
    entry: &BackpressureEntry,
    tenants: &[TenantEntry],
    link: BitRate,
    fleet: bool,
    busy: bool,
    problems: &mut Problems,
) -> Backpressure {
    let known = || tenants.iter().map(|tenant| tenant.name.value.as_str());
    for name in entry.tenants.iter().flatten() {
        is_known(name, tenants, "write one of the file's `tenants`", problems);
    }
    each_once(entry.tenants.as_deref().unwrap_or_default(), problems);
    let chosen = |tenant: &&str| {
        entry.tenants.as_ref().is_none_or(|names| names.iter().any(|name| name.value == **tenant))
    };
    let counted: Vec<String> = known().filter(chosen).map(str::to_owned).collect();
    let press = entry.watch.as_ref().map(|stated| {
        let watch = watch(&stated.value, tenants, &counted, problems);
        if busy && watch == Watch::Engine {
            always_busy(stated.at, problems);
        }
        let press = press(watch, stated.at, &entry.press, fleet, problems);
        promises(&entry.press, tenants, &counted, problems);
        above_link(press.rate, &entry.press, stated.at, link, problems);
        press
    });
    if press.is_none() {
        nothing_watched(&entry.press, problems);
    }
    Backpressure {
        tenants: counted,
        heavy: entry.heavy.or(PacketRate::new(HEAVY)).unwrap_or_else(|| unreachable!("not zero")),
        press,
    }
}

/// Reports a tenant that is listed again.
fn each_once(names: &[Name], problems: &mut Problems) {
    for (at, name) in names.iter().enumerate() {
        if let Some(first) = names[..at].iter().find(|first| first.value == name.value) {
            let message = format!("`tenants` of `backpressure` lists `{}` twice", name.value);
            let problem = Problem::error(Law::Meaningless, name.at, message).label("again");
            problems.push(
                problem
                    .also(first.at, "listed here")
                    .help("leave one of the two out, or write another tenant"),
            );
        }
    }
}

/// Reports a tenant that the file does not have.
fn is_known(name: &Name, tenants: &[TenantEntry], otherwise: &str, problems: &mut Problems) -> bool {
    let known = || tenants.iter().map(|tenant| tenant.name.value.as_str());
    let found = known().any(|tenant| tenant == name.value);
    if !found {
        let help = match nearest(&name.value, known()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => otherwise.to_owned(),
        };
        let message = format!("the file has no tenant `{}`", name.value);
        problems.push(Problem::error(Law::UnknownName, name.at, message).label("no tenant here").help(help));
    }
    found
}

/// Reports keys that slow flows down when nothing is watched.
fn nothing_watched(entry: &PressEntry, problems: &mut Problems) {
    for (key, at) in &entry.stated {
        let message = format!("`{key}` says how heavy flows are slowed down, and nothing is watched");
        let problem = Problem::error(Law::Meaningless, *at, message).label("needs `watch`");
        problems
            .push(problem.help("add `watch: engine`, or leave it out: flows are then counted and listed"));
    }
}

/// Reports that the core of a thread that never sleeps is watched.
fn always_busy(at: Mark, problems: &mut Problems) {
    let message = "with `engine.busy_poll` the engine's core is always busy, so it tells nothing of its load";
    let problem = Problem::error(Law::Meaningless, at, message).label("never below `release`");
    problems
        .push(problem.help("watch `{tenant: ..}`, `{cgroup: ..}` or `{pids: ..}`, or leave `busy_poll` out"));
}

/// What is watched. The engine stands in for what could not be read, so that the other keys' mistakes are told as well.
fn watch(stated: &WatchEntry, tenants: &[TenantEntry], counted: &[String], problems: &mut Problems) -> Watch {
    match stated {
        WatchEntry::Engine | WatchEntry::Unreadable => Watch::Engine,
        WatchEntry::Cgroup(path) => Watch::Cgroup(path.clone()),
        WatchEntry::Pids(pids) => Watch::Pids(pids.clone()),
        WatchEntry::Tenant(name) => {
            let named = tenants.iter().take(MOST_NAMED).map(|tenant| format!("`{}`", tenant.name.value));
            let named = named.collect::<Vec<_>>().join(", ");
            let more = if tenants.len() > MOST_NAMED { " and others" } else { "" };
            let otherwise = format!("the file's tenants are {named}{more}");
            if is_known(name, tenants, &otherwise, problems) && !counted.contains(&name.value) {
                let message = format!("`{}` is watched, and its flows are not counted", name.value);
                let problem = Problem::error(Law::Meaningless, name.at, message).label("not counted");
                let help = "add it to `tenants` of `backpressure`: none of its flows could be slowed down";
                problems.push(problem.help(help));
            }
            Watch::Tenant(name.value.clone())
        }
    }
}

fn press(watch: Watch, watch_at: Mark, entry: &PressEntry, fleet: bool, problems: &mut Problems) -> Press {
    let default = Press::new(watch);
    let or = |stated: &Option<Located<_>>, default| stated.as_ref().map_or(default, |found| found.value);
    let threshold = or(&entry.threshold, default.threshold);
    let press = Press {
        cores: entry.cores,
        threshold,
        release: or(&entry.release, Press::release_for(threshold)),
        poll: entry.poll.as_ref().map_or(default.poll, |found| found.value),
        part: entry.part.unwrap_or(default.part),
        mode: entry.mode.as_ref().map_or(default.mode, |found| found.value),
        rate: rate(entry, default.rate, problems),
        lifetime: entry.lifetime.as_ref().map_or(default.lifetime, |found| found.value),
        burst: entry.burst.unwrap_or(default.burst),
        flows: entry.flows.unwrap_or(default.flows),
        watch: default.watch,
    };
    ends(&press, entry, watch_at, problems);
    enough_threads(&press, entry, watch_at, problems);
    // Of a mode that could not be read nothing more is said.
    if entry.mode.is_some() || !entry.stated.iter().any(|(key, _)| *key == "mode") {
        let mode_at = entry.mode.as_ref().map_or(watch_at, |found| found.at);
        far_sources(press.mode, mode_at, fleet, problems);
    }
    press
}

fn rate(entry: &PressEntry, default: PressRate, problems: &mut Problems) -> PressRate {
    match (&entry.rate, &entry.least) {
        (Some(rate), least) => {
            if let Some(least) = least {
                let message = format!("`least` bounds `rate: auto`, and `rate` is {}", rate.value);
                let problem = Problem::error(Law::Meaningless, least.at, message).label("bounds nothing");
                problems.push(problem.also(rate.at, "stated here").help("leave one of the two out"));
            }
            PressRate::Fixed(rate.value)
        }
        (None, Some(least)) => PressRate::Auto { least: least.value },
        (None, None) => default,
    }
}

/// Overload ends before it begins again, and a meter outlives a few lost refreshes.
fn ends(press: &Press, entry: &PressEntry, watch_at: Mark, problems: &mut Problems) {
    if press.release >= press.threshold {
        let stated = entry.release.as_ref().or(entry.threshold.as_ref());
        let at = stated.map_or(watch_at, |found| found.at);
        let message = format!("`release` is {} and `threshold` is {}", press.release, press.threshold);
        let problem = Problem::error(Law::BadValue, at, message).label("no overload would end");
        problems.push(
            problem
                .help("overload ends below where it begins: write a lower `release`, such as 70% with 80%"),
        );
    }
    let least = press.poll.times(Press::LEAST_POLLS);
    if press.lifetime < least {
        let stated = entry.lifetime.as_ref().or(entry.poll.as_ref());
        let at = stated.map_or(watch_at, |found| found.at);
        let message = format!("`lifetime` is {} and `poll` is {}", press.lifetime, press.poll);
        let problem = Problem::error(Law::BadValue, at, message).label("shorter than four polls");
        problems
            .push(problem.help(format!("a meter must outlive a few lost refreshes: write {least} or more")));
    }
}

/// Reports more cores than the watched threads can take: no overload would begin.
fn enough_threads(press: &Press, entry: &PressEntry, watch_at: Mark, problems: &mut Problems) {
    let threads = match &press.watch {
        Watch::Engine | Watch::Tenant(_) => 1,
        Watch::Pids(pids) => pids.len() as u64,
        Watch::Cgroup(_) => return,
    };
    let Some(cores) = press.cores else { return };
    if u64::from(cores) * u64::from(press.threshold.per_mille()) <= threads * ONE_CORE {
        return;
    }
    let at = entry.stated.iter().find(|(key, _)| *key == "cores").map_or(watch_at, |(_, at)| *at);
    let message = format!(
        "overload begins at {} of {} cores, and {} takes {threads} at most",
        press.threshold,
        f64::from(cores) / 1_000.0,
        press.watch
    );
    let problem = Problem::error(Law::Meaningless, at, message).label("no overload would begin");
    problems.push(problem.help(format!("write `cores: {threads}` or less")));
}

/// Warns that tenants are promised more than the stated rate of a flow that is slowed down.
fn promises(entry: &PressEntry, tenants: &[TenantEntry], counted: &[String], problems: &mut Problems) {
    let Some(rate) = entry.rate.as_ref().or(entry.least.as_ref()) else { return };
    let above = |min: Option<Located<BitRate>>| min.filter(|min| min.value > rate.value);
    let mut promised = Vec::new();
    for tenant in tenants {
        let name = &tenant.name.value;
        // A flow to a counted tenant is held where it comes from, whatever tenant of this host that is.
        promised.extend(above(tenant.class.min).map(|min| (min.at, format!("`{name}` {}", min.value))));
        let inward = above(tenant.ingress_min()).filter(|_| counted.contains(name));
        // Without a promise of its own, what a tenant receives is promised as what it sends.
        let inward = inward.filter(|_| tenant.ingress.min.is_some());
        promised.extend(inward.map(|min| (min.at, format!("`{name}` {} on the way in", min.value))));
    }
    if promised.is_empty() {
        return;
    }
    let list: Vec<&str> = promised.iter().take(MOST_NAMED).map(|(_, text)| text.as_str()).collect();
    let more = if promised.len() > MOST_NAMED { ", and others" } else { "" };
    let message = format!(
        "a flow that is slowed down is held to {}, below what is promised: {}{more}",
        rate.value,
        list.join(", ")
    );
    let problem = Problem::warning(Law::MinNotHeld, rate.at, message).label("below a promise");
    let problem =
        promised.iter().take(MOST_NAMED).fold(problem, |problem, (at, _)| problem.also(*at, "promised here"));
    problems.push(problem.help(
        "a tenant that sends one flow does not get its `min` while that flow is slowed down: raise the rate, or lower the `min`",
    ));
}

/// Warns that each flow's rate is below the one to which flows are slowed down. The default `least` may be above the link, too.
fn above_link(rate: PressRate, entry: &PressEntry, watch_at: Mark, link: BitRate, problems: &mut Problems) {
    let (key, rate, help) = match rate {
        PressRate::Fixed(rate) => ("rate", rate, "write a lower `rate`, or `auto`"),
        PressRate::Auto { least } => ("least", least, "write a lower `least`"),
    };
    if rate <= link {
        return;
    }
    let stated = entry.rate.as_ref().or(entry.least.as_ref());
    let unless = if stated.is_some() { "" } else { ", as none is stated" };
    let message = format!("`{key}` of `backpressure` is {rate}{unless}, above the link's {link}");
    let at = stated.map_or(watch_at, |stated| stated.at);
    let problem = Problem::warning(Law::MaxAboveLink, at, message).label("slows no flow down");
    problems.push(problem.help(help));
}

/// Warns that no notification can reach the sources of flows that come over the uplink.
fn far_sources(mode: PressMode, at: Mark, fleet: bool, problems: &mut Problems) {
    if fleet || !mode.meters() {
        return;
    }
    let message = format!("`mode: {mode}` meters a flow at its source's host, and no host hears of it");
    let problem = Problem::warning(Law::SourceNotReached, at, message).label("this host's tenants only");
    problems.push(problem.help(
        "of flows that come over the uplink, what is beyond the rate is dropped at this host; `overlay` with `feedback` reaches \
         the hosts of a fleet",
    ));
}
