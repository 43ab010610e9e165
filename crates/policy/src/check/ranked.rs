//! Orders that rank packets: where they may stand above one another.
//!
//! Why: a packet has one rank, so that one order on its way can read it.
//! From: `docs/policy.md`, "`program`".
//! Not here: rank programs themselves (`compose::rank_program`).
//! Invariant: a class has a rank program above it, or reads slack and deadlines, or neither.

use super::graph::{Draft, DraftKind, Graph};
use crate::law::{Law, Problem, Problems};
use crate::read::syntax::{Flows, OrderKind};

/// Judges every node that ranks packets by more than their arrival.
pub(crate) fn judge(graph: &Graph, problems: &mut Problems) {
    for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| by_rank(node)) {
        let mut ranking =
            graph.path(index).skip(1).map(|above| &graph.nodes[above]).filter(|above| by_rank(above));
        let Some(above) = ranking.next().filter(|above| clashes(node, above)) else { continue };
        let message = format!("`{}` and `{}` both rank the same packets", node.name, above.name);
        let problem = Problem::error(Law::WrongKind, node.at, message).label("ranks them here");
        problems.push(problem.also(above.at, "and here").help(
            "a packet has one rank: keep one `program`, `lstf` or `edf` on the way to a class, and `wfq`, `drr`, `priority` or `fifo` \
             elsewhere",
        ));
    }
}

/// Whether it reads its packets' ranks, slack or deadlines.
fn by_rank(node: &Draft) -> bool {
    matches!(
        node.kind,
        DraftKind::Order(OrderKind::Program | OrderKind::Lstf | OrderKind::Edf)
            | DraftKind::Leaf { flows: Flows::Lstf | Flows::Edf, .. }
    )
}

/// Whether packets cannot have the rank that both read. `lstf` and `edf` read the same.
fn clashes(node: &Draft, above: &Draft) -> bool {
    let program = DraftKind::Order(OrderKind::Program);
    above.kind == program || node.kind == program
}
