//! `match:`, the conditions on a packet.

use std::collections::HashSet;
use std::hash::Hash;
use std::net::IpAddr;
use std::str::FromStr;

use super::syntax::MatchEntry;
use super::{Reader, names};
use crate::keys::{LIMIT_MATCH, PACKET_MATCH};
use crate::law::{Law, Problem};
use crate::program::{Match, Prefix};
use plimsoll_document::{Fields, Tree, bad};

/// A `match:` map; those of limits may also name classes.
pub(super) fn match_entry(reader: &mut Reader, tree: &Tree, of_limit: bool) -> MatchEntry {
    let table = if of_limit { &LIMIT_MATCH } else { &PACKET_MATCH };
    let told = reader.problems.len();
    let keys = reader.fields(tree, tree.at, "`match`", table);
    let mut names =
        |key: &str| keys.get(key).map_or_else(Vec::new, |tree| reader.names(tree, &format!("`{key}`")));
    let (tenant, class) = (names("tenant"), if of_limit { names("class") } else { Vec::new() });
    let conditions = Match {
        tenant: Vec::new(),
        src: prefixes(reader, &keys, "src"),
        dst: prefixes(reader, &keys, "dst"),
        protocol: each(reader, &keys, "protocol", protocol_example(), names::protocol),
        src_port: ports(reader, &keys, "src_port"),
        dst_port: ports(reader, &keys, "dst_port"),
        dscp: each(
            reader,
            &keys,
            "dscp",
            "a code point from 0 to 63 or a name such as `ef`",
            names::code_point,
        ),
        vlan: each(reader, &keys, "vlan", "a VLAN from 1 to 4094, or 0 for frames without a tag", |text| {
            text.parse().ok().filter(|vlan| *vlan < 4_095)
        }),
        priority: numbers(reader, &keys, "priority"),
        cgroup: numbers(reader, &keys, "cgroup"),
        user: numbers(reader, &keys, "user"),
        app: numbers(reader, &keys, "app"),
        core: numbers(reader, &keys, "core"),
    };
    let whole = reader.problems.len() == told;
    MatchEntry { at: tree.at, stated: true, whole, tenant, class, conditions }
}

fn protocol_example() -> &'static str {
    "a protocol: `tcp`, `udp`, `icmp`, `icmpv6`, `sctp`, or a number from 0 to 255"
}

/// A value or each of a list, without repetitions.
fn each<T: Copy + Eq + Hash>(
    reader: &mut Reader,
    keys: &Fields<'_>,
    key: &str,
    example: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Vec<T> {
    let Some(tree) = keys.get(key) else { return Vec::new() };
    let (mut values, mut seen) = (Vec::new(), HashSet::new());
    for item in reader.one_or_more(tree, &format!("`{key}`")) {
        let Some(text) = reader.text(item, &format!("`{key}`"), example) else { continue };
        match parse(text.trim()) {
            Some(value) if !seen.insert(value) => {}
            Some(value) => values.push(value),
            None => {
                let message = format!("`{key}` is `{text}`, not {example}");
                reader.report(bad(item.at, message, format!("write {example}")));
            }
        }
    }
    values
}

fn numbers<T: FromStr + Copy + Eq + Hash>(reader: &mut Reader, keys: &Fields<'_>, key: &str) -> Vec<T> {
    let wanted = if key == "cgroup" { super::names::CGROUP } else { "a whole number" };
    each(reader, keys, key, wanted, |text| text.parse().ok())
}

fn ports(reader: &mut Reader, keys: &Fields<'_>, key: &str) -> Vec<(u16, u16)> {
    let example = "a port such as `80` or a range such as `8000-8100`";
    let ranges = each(reader, keys, key, example, port_range);
    if let Some((from, to)) = ranges.iter().find(|(from, to)| from > to) {
        let at = keys.get(key).map_or(keys.at, |tree| tree.at);
        let message = format!("`{key}` goes from {from} down to {to}: no port lies in it");
        let problem = Problem::error(Law::NeverMatches, at, message).label("an empty range");
        reader.report(problem.help(format!("write the smaller port first: `{to}-{from}`")));
    }
    ranges
}

fn port_range(text: &str) -> Option<(u16, u16)> {
    match text.split_once('-') {
        Some((from, to)) => Some((from.trim().parse().ok()?, to.trim().parse().ok()?)),
        None => text.parse().ok().map(|port| (port, port)),
    }
}

fn prefixes(reader: &mut Reader, keys: &Fields<'_>, key: &str) -> Vec<Prefix> {
    let example = "an address or prefix such as `10.0.0.0/8` or `2001:db8::/32`";
    let found = each(reader, keys, key, example, |text| text.parse::<Prefix>().ok());
    if let (Some(tree), false) = (keys.get(key), found.is_empty()) {
        for item in reader.one_or_more(tree, key) {
            stray_bits(reader, item);
        }
    }
    found
}

/// `10.0.0.1/8` is more often a mistake than a way to write `10.0.0.0/8`.
pub(super) fn stray_bits(reader: &mut Reader, item: &Tree) {
    let plimsoll_document::Value::Text(text) = &item.value else { return };
    let (Ok(prefix), Some((addr, _))) = (text.trim().parse::<Prefix>(), text.split_once('/')) else { return };
    if addr.trim().parse::<IpAddr>().is_ok_and(|addr| addr != prefix.addr) {
        let message = format!("`{text}` has bits set behind its length of {}", prefix.len);
        let help = format!("write `{prefix}` for the whole network, or `{}` for the address", addr.trim());
        reader.report(bad(item.at, message, help));
    }
}
