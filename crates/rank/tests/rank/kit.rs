//! The test kit: a PIFO, and random programs and packets.
//!
//! Not here: a program in both forms (`node`), promises (`agreement`, `examples`).

use std::collections::BTreeMap;

use plimsoll_rank::{Field, Packet};
use proptest::prelude::*;

use crate::node::{Code, Node};

/// A push-in first-out queue: least rank first, then by arrival.
pub struct Pifo<'a> {
    node: Node<'a>,
    queue: BTreeMap<(u64, u64), Packet>,
    arrivals: u64,
}

impl<'a> Pifo<'a> {
    pub fn new(code: &'a Code) -> Self {
        Self { node: Node::new(code), queue: BTreeMap::new(), arrivals: 0 }
    }

    /// Queues a packet, and returns the number of its arrival.
    pub fn push(&mut self, packet: Packet) -> u64 {
        let rank = self.node.enqueue(&packet);
        self.queue.insert((rank, self.arrivals), packet.with(Field::Rank, rank));
        self.arrivals += 1;
        self.arrivals - 1
    }

    /// The packet that goes next, by the number of its arrival, and its rank.
    pub fn pop(&mut self, now: u64) -> Option<(u64, u64)> {
        let ((rank, arrival), packet) = self.queue.pop_first()?;
        self.node.dequeue(&packet.with(Field::Now, now));
        Some((arrival, rank))
    }
}

/// Packets with any fields, and with small ones.
pub fn packets() -> impl Strategy<Value = Packet> {
    let value = prop_oneof![3 => 0_u64..10, 2 => 0_u64..5_000, 1 => any::<u64>(), 1 => Just(u64::MAX)];
    proptest::array::uniform11(value).prop_map(|values| {
        let fields = Field::ALL.into_iter().zip(values);
        fields.fold(Packet::default(), |packet, (field, value)| packet.with(field, value))
    })
}

/// Texts of random programs, all of them legal.
pub fn programs() -> impl Strategy<Value = String> {
    let dequeue = prop::option::weighted(0.8, block(true));
    (block(false), dequeue, expression(false), any::<u64>()).prop_map(|(enqueue, dequeue, rank, first)| {
        let dequeue = dequeue.map_or(String::new(), |block| format!("dequeue {{ {block} }}"));
        format!(
            "state a = {first}; state b[class] = 3\nstate c[class] = {first} state d = 0\n\
             enqueue {{ {enqueue} rank = {rank}; if a < d {{ rank = rank + 1 }} }}\n{dequeue}"
        )
    })
}

fn expression(dequeue: bool) -> impl Strategy<Value = String> + Clone {
    let names = ["a", "b[class]", "c[class]", "d"].map(str::to_owned);
    let fields = Field::ALL.into_iter().filter(move |&field| dequeue || field != Field::Rank);
    let fields: Vec<String> = fields.map(|field| field.name().to_owned()).collect();
    let leaf = prop_oneof![
        3 => prop::sample::select(names.to_vec()),
        3 => prop::sample::select(fields),
        2 => (0_u64..5).prop_map(|number| number.to_string()),
        1 => any::<u64>().prop_map(|number| number.to_string()),
    ];
    let signs = ["+", "-", "*", "/", "%", "<", "<=", ">", ">=", "==", "!=", "&&", "||"];
    leaf.prop_recursive(4, 24, 3, move |inner| {
        let binary = (inner.clone(), prop::sample::select(signs.to_vec()), inner.clone());
        prop_oneof![
            5 => binary.prop_map(|(a, sign, b)| format!("({a} {sign} {b})")),
            1 => (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("max({a}, {b}, {c})")),
            1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("min({a}, {b})")),
            1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a} + {b} * 2 - 1 / 3")),
            1 => inner.prop_map(|a| format!("!{a}")),
        ]
    })
    .prop_map(|text| format!("({text})"))
}

fn block(dequeue: bool) -> impl Strategy<Value = String> {
    let value = expression(dequeue);
    let name = prop::sample::select(vec!["a", "b[class]", "c[class]", "d"]);
    let assignment = (name, value.clone()).prop_map(|(name, value)| format!("{name} = {value}"));
    let local = value.clone().prop_map(|value| format!("if 1 {{ let x = {value}; a = x + a }}"));
    prop_oneof![4 => assignment, 1 => local].prop_recursive(3, 12, 3, move |inner| {
        let several = prop::collection::vec(inner, 0..3).prop_map(|all| all.join("\n"));
        let branches = (value.clone(), several.clone(), several.clone());
        prop_oneof![
            2 => branches.prop_map(|(condition, a, b)| format!("if {condition} {{ {a} }} else {{ {b} }}")),
            1 => (value.clone(), several.clone()).prop_map(|(condition, a)| format!("if {condition} {{ {a} }}")),
            1 => (value.clone(), several.clone())
                .prop_map(|(condition, a)| format!("if {condition} {{ {a} }} else if a > 1 {{ {a} }}")),
            2 => several,
        ]
    })
}
