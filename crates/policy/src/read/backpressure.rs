//! The operator's file: `backpressure`.

use plimsoll_document::Tree;

use super::Reader;
use super::syntax::BackpressureEntry;
use crate::keys::BACKPRESSURE;

pub(super) fn backpressure(reader: &mut Reader, tree: &Tree) -> BackpressureEntry {
    let keys = reader.fields(tree, tree.at, "`backpressure`", &BACKPRESSURE);
    let rate = "a rate of packets such as `5kpps`";
    BackpressureEntry {
        tenants: keys.get("tenants").map(|tree| reader.names(tree, "`tenants` of `backpressure`")),
        heavy: keys
            .get("heavy")
            .and_then(|tree| reader.value(tree, "`heavy`", rate))
            .map(|found| found.value),
    }
}
