//! The operator's file: `backpressure`, and `ecn` of a tenant.

use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};

use plimsoll_document::{Fields, Located, Name, Tree, Value, bad};
use plimsoll_units::{BitRate, Bytes, Span};

use super::syntax::{BackpressureEntry, PressEntry, WatchEntry};
use super::{Reader, class};
use crate::keys::{BACKPRESSURE, ECN_LONG, MEDIATE, MOST_CORES, MOST_PID, WATCH};
use crate::press::{Ecn, Mediate, Part, Press, PressMode};

/// The keys that say how heavy flows are slowed down.
const PRESS_KEYS: [&str; 11] =
    ["cores", "threshold", "release", "poll", "part", "mode", "rate", "least", "lifetime", "burst", "flows"];
const WATCH_HELP: &str =
    "write `engine`, `{tenant: gateway}`, `{cgroup: /gateway.slice}` or `{pids: [123, 124]}`";
const ENDS_AT_ONCE: &str = "or leave it out for 3s: with zero a meter would end as it begins";
const PART: &str = "a part such as `80%` or `0.8`, at most `100%`, in steps of `0.1%`";

pub(super) fn backpressure(reader: &mut Reader, tree: &Tree) -> BackpressureEntry {
    let keys = reader.fields(tree, tree.at, "`backpressure`", &BACKPRESSURE);
    let rate = "a rate of packets such as `5kpps`";
    BackpressureEntry {
        tenants: keys.get("tenants").map(|tree| reader.names(tree, "`tenants` of `backpressure`")),
        heavy: keys
            .get("heavy")
            .and_then(|tree| {
                let zero = "or leave it out for 10kpps: with zero every flow would be a heavy hitter";
                reader.nonzero(tree, "`heavy`", rate, zero)
            })
            .map(|found| found.value),
        watch: keys.get("watch").map(|tree| {
            let found = watch(reader, tree).unwrap_or(WatchEntry::Unreadable);
            Located::new(found, tree.at)
        }),
        press: press(reader, &keys),
    }
}

/// What is watched; nothing, with a problem, where it could not be read.
fn watch(reader: &mut Reader, tree: &Tree) -> Option<WatchEntry> {
    match &tree.value {
        Value::Text(text) if text == "engine" => return Some(WatchEntry::Engine),
        Value::Map(entries) if !entries.is_empty() => {}
        _ => {
            reader.report(bad(tree.at, "this is nothing that `watch` could be", WATCH_HELP));
            return None;
        }
    }
    let kinds = reader.fields(tree, tree.at, "`watch`", &WATCH);
    let mut found = [
        kinds.get("tenant").map(|tree| watched_tenant(reader, tree)),
        kinds.get("cgroup").map(|tree| cgroup(reader, tree).map(WatchEntry::Cgroup)),
        kinds.get("pids").map(|tree| pids(reader, tree).map(WatchEntry::Pids)),
    ];
    if found.iter().flatten().count() > 1 {
        reader.report(bad(tree.at, "`watch` names several things", WATCH_HELP));
    }
    found.iter_mut().find_map(Option::take)?
}

fn watched_tenant(reader: &mut Reader, tree: &Tree) -> Option<WatchEntry> {
    let text = reader.text(tree, "`tenant` of `watch`", "the name of a tenant")?;
    Some(WatchEntry::Tenant(Name::new(text.to_owned(), tree.at)))
}

/// A cgroup's path from the root of the cgroup file system, which it cannot leave.
fn cgroup(reader: &mut Reader, tree: &Tree) -> Option<PathBuf> {
    let text = reader.text(tree, "`cgroup` of `watch`", "a path such as `/gateway.slice`")?;
    let path = Path::new(text);
    let inside = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if path.is_absolute() && path.components().all(inside) && !text.contains('\0') {
        return Some(path.to_owned());
    }
    let message = format!("`{text}` is no path of a cgroup");
    let help = "write its path below /sys/fs/cgroup with a `/` in front and without `..`, such as \
                `/machine.slice/gateway.scope`; `/proc/PID/cgroup` names that of a process";
    reader.report(bad(tree.at, message, help));
    None
}

/// The numbers of threads, each once.
fn pids(reader: &mut Reader, tree: &Tree) -> Option<Vec<u32>> {
    let items = reader.one_or_more(tree, "`pids` of `watch`");
    let (asked, what) = (items.len(), "a number in `pids`");
    let mut pids: Vec<u32> =
        items.into_iter().filter_map(|item| Some(reader.positive(item, what, MOST_PID)?.value)).collect();
    let whole = asked > 0 && pids.len() == asked;
    pids.sort_unstable();
    pids.dedup();
    whole.then_some(pids)
}

fn press(reader: &mut Reader, keys: &Fields<'_>) -> PressEntry {
    let stated = PRESS_KEYS.into_iter().filter_map(|key| Some((key, keys.key_at(key)?))).collect();
    let mut part = |key: &str, zero: &str| -> Option<Located<Part>> {
        reader.nonzero(keys.get(key)?, &format!("`{key}`"), PART, zero)
    };
    let threshold = part("threshold", "or leave it out for 80%: with zero there would always be an overload");
    let release = part("release", "or leave it out: no load is below zero, so no overload would end");
    let part = part("part", "or leave it out for 10%: with zero every heavy hitter would be slowed down");
    let part = part.filter(|part| {
        let whole = part.value.per_mille() == 1_000;
        if whole {
            let help = "write a smaller part such as `10%`: no flow sends more packets than all together";
            reader.report(bad(part.at, "`part` is 100%, so no flow would be slowed down for it", help));
        }
        !whole
    });
    PressEntry {
        stated,
        cores: keys.get("cores").and_then(|tree| cores(reader, tree)),
        threshold,
        release,
        poll: keys.get("poll").and_then(|tree| {
            let zero = "or leave it out for 1ms: some time must pass between two looks at the load";
            within(reader, tree, "`poll`", Press::POLLS, zero)
        }),
        part: part.map(|part| part.value),
        mode: keys.get("mode").and_then(|tree| mode(reader, tree)),
        rate: keys.get("rate").and_then(|tree| rate(reader, tree)),
        least: keys.get("least").and_then(|tree| metered(reader, tree, "`least`", class::RATE)),
        lifetime: keys
            .get("lifetime")
            .and_then(|tree| within(reader, tree, "`lifetime`", Press::LIFETIMES, ENDS_AT_ONCE)),
        burst: keys.get("burst").and_then(|tree| burst(reader, tree, "`burst` of `backpressure`")),
        flows: keys
            .get("flows")
            .and_then(|tree| reader.positive(tree, "`flows` of `backpressure`", Press::MOST_FLOWS))
            .map(|found| found.value),
    }
}

/// Cores, in thousandths.
fn cores(reader: &mut Reader, tree: &Tree) -> Option<u32> {
    let example = format!("a number of cores such as `2` or `0.5`, at most {MOST_CORES}");
    let zero = "or leave it out for one core: without any there would always be an overload";
    let found: Located<f64> = reader.nonzero(tree, "`cores`", &example, zero)?;
    let range: RangeInclusive<f64> = 1.0..=f64::from(MOST_CORES * 1_000);
    let thousandths = (found.value * 1_000.0).round();
    if range.contains(&thousandths) {
        return Some(thousandths as u32);
    }
    reader.report(bad(tree.at, format!("`cores` is {}", found.value), format!("write {example}")));
    None
}

/// A time within bounds; `zero` says what zero would do.
fn within(
    reader: &mut Reader,
    tree: &Tree,
    what: &str,
    [least, most]: [Span; 2],
    zero: &str,
) -> Option<Located<Span>> {
    let example = format!("a time from {least} to {most}");
    let found: Located<Span> = reader.nonzero(tree, what, &example, zero)?;
    if (least..=most).contains(&found.value) {
        return Some(found);
    }
    reader.report(bad(tree.at, format!("{what} is {}", found.value), format!("write {example}")));
    None
}

fn mode(reader: &mut Reader, tree: &Tree) -> Option<Located<PressMode>> {
    let text = reader.text(tree, "`mode`", "`mark`, `meter`, `mark_and_meter`, `drop` or `window`")?;
    let found = PressMode::ALL.iter().find(|(name, _)| *name == text);
    if found.is_none() {
        let help = "write `mark` (CE on some packets), `meter` (a token bucket at the source's host), `mark_and_meter` (both), \
                    `drop` (at this host) or `window` (a smaller receive window)";
        reader.report(bad(tree.at, format!("`{text}` is no way to slow a flow down"), help));
    }
    found.map(|(_, mode)| Located::new(*mode, tree.at))
}

/// A rate; nothing for `auto`, the default.
fn rate(reader: &mut Reader, tree: &Tree) -> Option<Located<BitRate>> {
    let example = "`auto`, or a rate such as `850Mbps`";
    if reader.text(tree, "`rate` of `backpressure`", example)? == "auto" {
        return None;
    }
    metered(reader, tree, "`rate` of `backpressure`", example)
}

/// A rate to which a flow can be held.
fn metered(reader: &mut Reader, tree: &Tree, what: &str, example: &str) -> Option<Located<BitRate>> {
    let zero = format!("at least {}: backpressure slows a flow down, and never stops it", Press::LEAST_RATE);
    let found: Located<BitRate> = reader.nonzero(tree, what, example, &zero)?;
    if found.value >= Press::LEAST_RATE {
        return Some(found);
    }
    let message = format!("{what} is {}, and no flow is held below {}", found.value, Press::LEAST_RATE);
    reader.report(bad(tree.at, message, format!("write {example}, at least {}", Press::LEAST_RATE)));
    None
}

fn burst(reader: &mut Reader, tree: &Tree, what: &str) -> Option<Bytes> {
    let (least, most) = (Press::LEAST_BURST, Press::MOST_BURST);
    let example = format!("a size from {least} to {most}");
    let zero = "or leave it out for 128KiB: a meter without a burst lets no packet pass";
    let found = reader.nonzero::<Bytes>(tree, what, &example, zero)?.value;
    if (least..=most).contains(&found) {
        return Some(found);
    }
    reader.report(bad(tree.at, format!("{what} is {found}"), format!("write {example}")));
    None
}

/// Whether backpressure may change a tenant's packets.
pub(super) fn ecn(reader: &mut Reader, tree: &Tree, what: &str) -> Ecn {
    if let Value::Map(entries) = &tree.value
        && !entries.is_empty()
    {
        if let Some((key, _)) = entries.iter().find(|(key, _)| key.value == "mediated") {
            let message = format!("`mediated` of `ecn` of {what} takes no further keys");
            let help = "write `ecn: mediated`, or `ecn: {mediate: {rate: 850Mbps}}` to state its `rate`, `lifetime` or `burst`";
            reader.report(bad(key.at, message, help));
            return Ecn::default();
        }
        let keys = reader.fields(tree, tree.at, &format!("`ecn` of {what}"), &ECN_LONG);
        let mediate = keys.get("mediate").map(|tree| mediate(reader, tree));
        return mediate.map_or_else(Ecn::default, Ecn::Mediated);
    }
    match reader.text(tree, &format!("`ecn` of {what}"), "`allowed`, `untouched` or `mediated`") {
        Some("untouched") => Ecn::Untouched,
        Some("mediated") => Ecn::Mediated(Mediate::default()),
        Some("allowed") | None => Ecn::Allowed,
        Some(other) => {
            let help = "write `untouched` (backpressure changes none of its packets), `mediated` (this host stands in for an \
                        end without ECN), or leave it out";
            reader.report(bad(tree.at, format!("`{other}` is nothing that `ecn` could be"), help));
            Ecn::default()
        }
    }
}

/// The meter of mediation.
fn mediate(reader: &mut Reader, tree: &Tree) -> Mediate {
    let keys = reader.fields(tree, tree.at, "`mediate`", &MEDIATE);
    let default = Mediate::default();
    let rate = keys.get("rate").and_then(|tree| metered(reader, tree, "`rate` of `mediate`", class::RATE));
    let lifetime = keys
        .get("lifetime")
        .and_then(|tree| within(reader, tree, "`lifetime` of `mediate`", Press::LIFETIMES, ENDS_AT_ONCE));
    let burst = keys.get("burst").and_then(|tree| burst(reader, tree, "`burst` of `mediate`"));
    Mediate {
        rate: rate.map_or(default.rate, |found| found.value),
        lifetime: lifetime.map_or(default.lifetime, |found| found.value),
        burst: burst.unwrap_or(default.burst),
    }
}
