//! A tenant's `addresses` and `binding`.

use super::Reader;
use super::matches::stray_bits;
use super::syntax::AddressesEntry;
use crate::addresses::{Binding, StatedAddress};
use plimsoll_document::{Fields, Located, bad};

/// More of them are better written as networks.
const MOST: usize = 1_024;

pub(super) fn addresses(reader: &mut Reader, keys: &Fields<'_>, what: &str) -> AddressesEntry {
    let here = format!("`addresses` of {what}");
    let items = keys.get("addresses").map(|tree| reader.one_or_more(tree, &here)).unwrap_or_default();
    if let (true, Some(tree)) = (items.len() > MOST, keys.get("addresses")) {
        let message = format!("{here} are {}", items.len());
        reader.report(bad(tree.at, message, format!("write networks such as `10.0.1.0/24`: {MOST} at most")));
    }
    let mut list = Vec::new();
    for item in items.into_iter().take(MOST) {
        let example =
            "an address such as `10.0.0.1`, a network such as `2001:db8:1::/64` or `02:00:00:00:0a:01`";
        list.extend(reader.value::<StatedAddress>(item, &here, example));
        stray_bits(reader, item);
    }
    AddressesEntry { list, binding: binding(reader, keys, what) }
}

fn binding(reader: &mut Reader, keys: &Fields<'_>, what: &str) -> Option<Located<Binding>> {
    let tree = keys.get("binding")?;
    let here = format!("`binding` of {what}");
    reader.value(tree, &here, "`strict` (the default), `router` or `off`")
}
