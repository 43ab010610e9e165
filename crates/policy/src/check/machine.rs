//! What a policy asks of the machine that it is checked on.
//!
//! Why: the daemon does not start on a core that is missing; `check` says so before.
//! From: the kernel's list of the cores that are online, and its speeds of interfaces (sysfs, as `ethtool` shows).
//! Not here: which of the cores a daemon may use (it asks when it starts).
//! Invariant: only doubts, as the file may be for another machine; none where the kernel says nothing.

use plimsoll_document::{Located, Mark};
use plimsoll_units::BitRate;

use crate::config::{Port, Uplink};
use crate::law::{Law, Problem};

/// Cores that are online, as ranges such as `0-3,6`.
pub(super) fn cores() -> String {
    std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default()
}

/// A doubt about `engine.cpu` where it is none of `cores`.
pub(super) fn no_such_core(cpu: Located<u32>, cores: &str) -> Option<Problem> {
    missing(cpu, ("`cpu`", "or leave `cpu` out"), cores)
}

/// A doubt about the core that a program has to itself where it is none of `cores`.
pub(super) fn no_such_core_for_program(core: Located<u32>, cores: &str) -> Option<Problem> {
    missing(core, ("a core of a program", "or give the program a `weight`"), cores)
}

fn missing(cpu: Located<u32>, (what, or): (&str, &str), cores: &str) -> Option<Problem> {
    let cores = cores.trim();
    let range = |range: &str| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        Some(from.parse::<u32>().ok()?..=to.parse().ok()?)
    };
    let ranges: Option<Vec<_>> = cores.split(',').map(range).collect();
    if ranges?.iter().any(|range| range.contains(&cpu.value)) {
        return None;
    }
    let message = format!("{what} is {}, but this machine's cores are {cores}", cpu.value);
    let problem = Problem::warning(Law::BadValue, cpu.at, message).label("no core of this machine");
    Some(problem.help(format!("the daemon would not start here: write one of these cores, {or}")))
}

/// The speed of an interface's link in Mb/s, as the kernel tells it. Many virtual interfaces have none, nor has one that is
/// down.
pub(super) fn speed(interface: &str) -> String {
    std::fs::read_to_string(format!("/sys/class/net/{interface}/speed")).unwrap_or_default()
}

/// A doubt about a standby whose link is slower than the uplink's rate. `speed` tells an interface's.
pub(super) fn slow_standby(uplink: &Uplink, at: Mark, speed: impl Fn(&str) -> String) -> Option<Problem> {
    let (Port::AfPacket(name) | Port::AfXdp(name)) = uplink.standby.as_ref()? else { return None };
    // What is not known is -1, of older kernels in 32 bits.
    let told = speed(name).trim().parse::<u32>().ok().filter(|&mbps| mbps != u32::MAX)?;
    let (link, rate) = (BitRate::new(u64::from(told) * 1_000_000)?, uplink.rate);
    if link >= rate {
        return None;
    }
    let message = format!("the link of the standby `{name}` has {link}, and the uplink's `rate` is {rate}");
    let problem = Problem::warning(Law::BadValue, at, message).label("slower than the uplink");
    Some(problem.help(
        "while it is active, more packets leave the engine than the link takes, and wait or are lost beyond the policy's \
         order: take a faster port, or a lower `rate`",
    ))
}

#[cfg(test)]
mod tests {
    use plimsoll_units::{Bytes, Span};

    use super::*;

    #[test]
    fn a_standby_that_is_slower_than_the_rate_raises_a_doubt() {
        let told = |rate: u64, speed: &str| {
            let uplink = Uplink {
                port: Port::AfPacket("eth0".into()),
                standby: Some(Port::AfXdp("eth1".into())),
                hold_off: Span::secs(5),
                rate: BitRate::mbps(rate),
                overhead: Bytes::ZERO,
                mtu: 1_500,
                grain: None,
            };
            slow_standby(&uplink, Mark::default(), |name| {
                assert_eq!(name, "eth1");
                speed.to_owned()
            })
        };
        let doubt = told(10_000, "1000\n").expect("a tenth");
        assert_eq!(
            doubt.message,
            "the link of the standby `eth1` has 1Gbps, and the uplink's `rate` is 10Gbps"
        );
        assert!(
            told(1_000, "1000\n").is_none()
                && told(999, "1000\n").is_none()
                && told(1_001, "1000\n").is_some()
        );
        for unknown in ["", "-1\n", "0\n", "4294967295\n", "fast\n"] {
            assert!(told(10_000, unknown).is_none(), "{unknown:?}: where nothing is known, nothing is said");
        }
    }

    #[test]
    fn cores_that_are_there_raise_no_doubt() {
        let told = |cpu, cores| no_such_core(Located::new(cpu, Mark::default()), cores).is_some();
        assert!([0, 1, 3, 6].iter().all(|&cpu| !told(cpu, "0-1,3,5-7\n")));
        assert!([2, 4, 8, 9_999].iter().all(|&cpu| told(cpu, "0-1,3,5-7\n")));
        assert!(!told(9_999, ""), "where nothing is known, nothing is said");
    }
}
