//! A tenant's `interface`.

use super::Reader;
use super::syntax::InterfaceEntry;
use crate::keys::INTERFACE_KEYS_OF_TENANT;
use plimsoll_document::{Fields, Tree, bad};

/// More addresses or routes are set by the tenant itself.
const MOST: usize = 64;

pub(super) fn interface(reader: &mut Reader, tree: &Tree, what: &str) -> InterfaceEntry {
    let keys = reader.fields(tree, tree.at, &format!("`interface` of {what}"), &INTERFACE_KEYS_OF_TENANT);
    let mtu = keys.get("mtu").and_then(|tree| reader.positive(tree, "`mtu` of `interface`", 65_535));
    let address = "an address with the length of its network, such as `10.0.0.5/24`";
    let route = "a route such as `default via 10.0.0.1` or `10.9.0.0/16 via 10.0.0.2`";
    let persist = keys.get("persist").and_then(|tree| reader.flag(tree, "`persist`")).unwrap_or(false);
    InterfaceEntry {
        at: Some(tree.at),
        persist,
        addresses: list(reader, &keys, "addresses")
            .into_iter()
            .filter_map(|item| reader.value(item, "`addresses` of `interface`", address))
            .collect(),
        routes: list(reader, &keys, "routes")
            .into_iter()
            .filter_map(|item| reader.value(item, "`routes` of `interface`", route))
            .collect(),
        mtu,
    }
}

fn list<'t>(reader: &mut Reader, keys: &Fields<'t>, key: &str) -> Vec<&'t Tree> {
    let Some(tree) = keys.get(key) else { return Vec::new() };
    let items = reader.one_or_more(tree, &format!("`{key}` of `interface`"));
    if items.len() > MOST {
        let message = format!("`{key}` of `interface` are {}", items.len());
        reader.report(bad(tree.at, message, format!("write {MOST} at most")));
    }
    items.into_iter().take(MOST).collect()
}
