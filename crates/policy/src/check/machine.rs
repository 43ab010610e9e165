//! What a policy asks of the machine that it is checked on.
//!
//! Why: the daemon does not start on a core that is missing; `check` says so before.
//! From: the kernel's list of the cores that are online.
//! Not here: which of them a daemon may use (it asks when it starts).
//! Invariant: only doubts, as the file may be for another machine; none where the kernel's list cannot be read.

use crate::law::{Law, Problem};
use plimsoll_document::Located;

/// Cores that are online, as ranges such as `0-3,6`.
pub(super) fn cores() -> String {
    std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default()
}

/// A doubt about `engine.cpu` where it is none of `cores`.
pub(super) fn no_such_core(cpu: Located<u32>, cores: &str) -> Option<Problem> {
    let cores = cores.trim();
    let range = |range: &str| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        Some(from.parse::<u32>().ok()?..=to.parse().ok()?)
    };
    let ranges: Option<Vec<_>> = cores.split(',').map(range).collect();
    if ranges?.iter().any(|range| range.contains(&cpu.value)) {
        return None;
    }
    let message = format!("`cpu` is {}, but this machine's cores are {cores}", cpu.value);
    let problem = Problem::warning(Law::BadValue, cpu.at, message).label("no core of this machine");
    Some(problem.help("the daemon would not start here: write one of these cores, or leave `cpu` out"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_document::Mark;

    #[test]
    fn cores_that_are_there_raise_no_doubt() {
        let told = |cpu, cores| no_such_core(Located::new(cpu, Mark::default()), cores).is_some();
        assert!([0, 1, 3, 6].iter().all(|&cpu| !told(cpu, "0-1,3,5-7\n")));
        assert!([2, 4, 8, 9_999].iter().all(|&cpu| told(cpu, "0-1,3,5-7\n")));
        assert!(!told(9_999, ""), "where nothing is known, nothing is said");
    }
}
