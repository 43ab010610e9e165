//! The interpreter and the module mean the same, and keep to the cost.

use plimsoll_rank::{Field, Packet};
use proptest::prelude::*;

use crate::kit::{packets, programs};
use crate::node::{Code, Node};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// A random program gives the same ranks interpreted and as WebAssembly, packet for packet, within its cost.
    #[test]
    fn the_module_does_what_the_interpreter_does(
        text in programs(),
        packets in prop::collection::vec((packets(), any::<bool>()), 1..40),
    ) {
        let code = Code::new(&text);
        let mut node = Node::new(&code);
        for (packet, arrives) in &packets {
            if *arrives {
                node.enqueue(packet);
            } else {
                node.dequeue(packet);
            }
        }
    }
}

/// Each operator on pairs of values at which something may overflow.
#[test]
fn operators_agree_at_the_edges() {
    let near = |bit: u32| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1];
    let edges: Vec<u64> =
        [0, 1, 16, 31, 32, 33, 62, 63].into_iter().flat_map(near).chain([u64::MAX - 1, u64::MAX]).collect();
    let signs = [
        "a + b",
        "a - b",
        "a * b",
        "a / b",
        "a % b",
        "min(a, b)",
        "max(a, b)",
        "a < b",
        "a <= b",
        "a > b",
        "a >= b",
        "a == b",
        "a != b",
        "a && b",
        "a || b",
        "!a",
    ];
    for sign in signs {
        let code =
            Code::new(&format!("enqueue {{ let a = packet.len; let b = packet.slack; rank = {sign} }}"));
        let mut node = Node::new(&code);
        for &a in &edges {
            for &b in &edges {
                node.enqueue(&Packet::default().with(Field::Len, a).with(Field::Slack, b));
            }
        }
    }
}

/// The rank that a program gives to a packet of class `class`.
fn rank(text: &str, class: u64) -> u64 {
    let code = Code::new(text);
    Node::new(&code).enqueue(&Packet::default().with(Field::Number, class))
}

#[test]
fn products_bind_before_sums_and_sums_before_comparisons() {
    assert_eq!(rank("enqueue { rank = 2 + 3 * 4 - 6 / 3 }", 0), 12);
    assert_eq!(rank("enqueue { rank = 10 - 4 - 3 }", 0), 3);
    assert_eq!(rank("enqueue { rank = 1 + 1 == 2 && !0 || 0 }", 0), 1);
    assert_eq!(rank("enqueue { rank = min(7, 2 + 3, 9) + max(1, 8) }", 0), 13);
}

#[test]
fn each_class_has_its_own_variables() {
    let code = Code::new("state n[class] = 5 enqueue { n[class] = n[class] + 1; rank = n[class] }");
    let mut node = Node::new(&code);
    let mut of = |class| node.enqueue(&Packet::default().with(Field::Number, class));
    assert_eq!((of(0), of(0), of(1), of(0)), (6, 7, 6, 8));
    // Classes beyond the last share its variables.
    assert_eq!((of(1_023), of(1_024), of(u64::MAX)), (6, 7, 8));
}

#[test]
fn the_cost_is_that_of_the_worst_path() {
    let cost = |text: &str| Code::new(text).module.enqueue_cost;
    let (none, one) = ("enqueue { rank = 1 }", "enqueue { if 1 { rank = 1 } else { rank = 1 } }");
    assert_eq!(cost(none), 4, "the call, the number, the assignment, the result");
    assert_eq!(cost(one), 8, "four more for the condition");
    let one_way = "enqueue { rank = 1 if now { rank = 1 * 1 } }";
    assert_eq!(cost(one_way), cost("enqueue { rank = 1 if now { rank = 1 * 1 } else { rank = 2 } }"));
}

/// Where nothing branches, or the worst path is taken, a call costs exactly what is stated.
#[test]
fn the_cost_is_reached() {
    for value in
        ["1 + 2", "1 - 2", "2 * 18446744073709551615", "3 / 2", "3 % 2", "min(1, 2)", "max(1, 2)", "1 && !2"]
    {
        let code = Code::new(&format!("state n[class] = 0 enqueue {{ rank = {value} }}"));
        let mut node = Node::new(&code);
        node.enqueue(&Packet::default());
        assert_eq!(node.used, code.module.enqueue_cost, "{value}");
    }
}
