//! Packets that the kernel dropped before a TAP was read.
//!
//! Why: a tenant that sends faster than its TAP is read loses packets in the kernel; they must be counted too.
//! From: the interface's own counter, in `/proc/net/dev` as a thread inside the tenant's namespace sees it.
//! Not here: packets that the engine lost (`dataplane::Tally`).
//! Invariant: an interface that cannot be read counts as one without drops; the others are read nevertheless.

use std::collections::BTreeMap;

use plimsoll_policy::{Checked, Port};
use plimsoll_ports::netns::Netns;

use crate::open::netns_ref;

/// Packets that each tenant's TAP dropped since it was made, by the tenant's name; those that dropped none are left out.
#[must_use]
pub fn dropped(checked: &Checked) -> BTreeMap<String, u64> {
    let tenants = checked.config.tenants.iter();
    let asked = tenants.filter_map(|tenant| {
        let Port::Tap { netns, name } = &tenant.port else { return None };
        let netns = Netns::open(&netns_ref(netns.as_ref())).ok()?;
        let text = netns.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).ok()?.ok()?;
        Some((tenant.name.clone(), sending_dropped(&text, name)?))
    });
    asked.filter(|&(_, count)| count > 0).collect()
}

/// The twelfth figure of an interface's line: packets dropped on transmit.
fn sending_dropped(text: &str, interface: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
    line.split_whitespace().nth(11)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_figure_of_the_right_line() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes ...\n\
                    \x20 eth01: 1 2 3 4 5 6 7 8 9 10 11 99 13 14 15 16\n\
                    \x20 eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        assert_eq!(sending_dropped(text, "eth0"), Some(12));
        assert_eq!(sending_dropped(text, "eth1"), None);
    }
}
