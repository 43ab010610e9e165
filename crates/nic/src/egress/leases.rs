//! Leases: this engine's part of a policy that several engines carry out together, changed many times a second.
//!
//! Why: threads share the link by leases (`plimsoll_control::leases`), and an engine takes its own between two turns.
//! Not here: how parts are computed, and how they reach the engine.
//! Invariant: an engine without leases pays nothing: nothing on the path of a packet asks whether there are any.

use plimsoll_policy::{LimitId, NodeId, NodeKind, Placement};
use plimsoll_units::{BitRate, Bytes, Nanos};

use super::Nic;
use crate::bundle::{Bundle, Done};
use crate::host::Counts;
use crate::ids::{BundleId, GateId, Table, Tagged, TreeId};
use crate::tree::Seat;

/// Bytes of a class, as charged: overhead included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassBytes {
    /// They have left since the policy was installed.
    pub left: u64,
    /// They wait.
    pub waiting: u64,
}

impl Nic {
    /// Gives the engine another rate of the link from `now` on. What is owed for frames that have left is earned at the new rate.
    /// Constant time.
    pub fn lease_link(&mut self, rate: BitRate, now: Nanos) {
        self.link.pace.change_rate(rate, now);
    }

    /// The engine's rate of the link.
    #[must_use]
    pub fn link_rate(&self) -> BitRate {
        self.link.pace.rate()
    }

    /// Gives a node another weight among its siblings: in the tree, or `behind` one limit. Linear in the siblings.
    pub fn lease_weight(&mut self, node: NodeId, behind: Option<LimitId>, weight: u32) {
        let Some(parent) = self.program.nodes.get(node.0 as usize).and_then(|node| node.parent) else {
            return;
        };
        let Seat { node: main, slot } = self.forest.seat(node);
        let tree = match behind {
            None => Some(main),
            Some(limit) => self.layout.copies.get(&(limit, parent)).copied(),
        };
        if let Some(tree) = tree.filter(|&tree| tree != TreeId::NONE) {
            self.forest.set_weight(tree, slot, weight);
        }
    }

    /// Gives a node that has a `min` another one. Constant time.
    pub fn lease_min(&mut self, node: NodeId, min: BitRate, now: Nanos) {
        if self.program.nodes.get(node.0 as usize).is_some_and(|node| node.min.is_some()) {
            let Seat { node: parent, slot } = self.forest.seat(node);
            self.forest.set_min(parent, slot, min, self.layout.largest, now);
        }
    }

    /// Gives a limit another rate and burst, and caps what it has saved up at `credit`. Constant time.
    pub fn lease_limit(&mut self, limit: LimitId, rate: BitRate, burst: Bytes, credit: Bytes, now: Nanos) {
        let Some(state) = self.limits.get_mut(limit) else { return };
        state.lease(rate, burst, credit, now);
        if state.gate == GateId::NONE {
            return self.arm_at(limit, now);
        }
        self.forest.reopen_at(state.gate, state.due());
        self.set_alarms(now);
    }

    /// Takes what the link's rate has earned until `now` and nothing could use: bytes that another engine may send in its place.
    /// To be called after [`Nic::poll_transmit`] with the same `now`. Constant time.
    pub fn take_unused(&mut self, now: Nanos) -> Bytes {
        if !self.forest.is_active(self.layout.root) {
            self.link.unused += now.since(self.link.pace.earned());
            self.link.pace.catch_up(now);
        }
        self.link.pace.rate().bytes_in(core::mem::take(&mut self.link.unused))
    }

    /// Bytes for which the link's rate has to wait although something could leave; 0 if there is nothing.
    #[must_use]
    pub fn lacks_credit(&self, now: Nanos) -> Bytes {
        let earned = self.link.pace.earned();
        if earned <= now || !self.forest.is_active(self.layout.root) {
            return Bytes::ZERO;
        }
        self.link.pace.rate().bytes_in(earned - now) + Bytes::new(1) // not less, or it would still have to wait
    }

    /// Adds bytes that another engine could not use, up to what [`Nic::lacks_credit`] said.
    pub fn borrow_credit(&mut self, bytes: Bytes, now: Nanos) {
        self.link.pace.refund(bytes);
        self.link.pace.catch_up(now - self.link.catch_up);
    }

    /// Bytes that have left each class and that wait in it, overhead included, added to `into` by [`NodeId`]. Linear in flow
    /// queues and bundles; nothing is allocated.
    pub fn report_classes(&self, into: &mut [ClassBytes]) {
        let overhead = self.program.overhead.as_u64();
        let mut add = |class: NodeId, left: u64, waiting: u64| {
            if let Some(class) = into.get_mut(class.0 as usize) {
                (class.left, class.waiting) = (class.left + left, class.waiting + waiting);
            }
        };
        for (class, &Done { packets, bytes }) in (0..).map(NodeId).zip(self.sums.iter()) {
            add(class, bytes + packets * overhead, 0);
        }
        for (home, packets, bytes) in self.host.counted() {
            add(self.class_at(home), u64::from(bytes) + u64::from(packets) * overhead, 0);
        }
        for bundle in self.bundles.iter() {
            add(bundle.class, bundle.done.bytes + bundle.done.packets * overhead, 0);
        }
        for (home, packets, bytes) in self.host.backlogs() {
            add(self.class_at(home), 0, bytes + packets * overhead);
        }
    }

    /// Bytes that have left and that wait, overhead included, by member: the nodes by their numbers, and then the bundles. Replaces what
    /// `into` holds. Linear in flow queues and bundles; allocates only when there are more of these than at the last call.
    pub fn report_members(&mut self, into: &mut Vec<ClassBytes>) {
        let (overhead, nodes) = (self.program.overhead.as_u64(), self.program.nodes.len());
        into.clear();
        into.resize(nodes + self.bundles.len(), ClassBytes::default());
        let mut add = |row: usize, left: u64, waiting: u64| {
            if let Some(row) = into.get_mut(row) {
                (row.left, row.waiting) = (row.left + left, row.waiting + waiting);
            }
        };
        for (class, &Done { packets, bytes }) in self.sums.iter().enumerate() {
            add(class, bytes + packets * overhead, 0);
        }
        for (id, bundle) in (0..).map(BundleId).zip(self.bundles.iter()) {
            add(self.row_of(id), bundle.done.bytes + bundle.done.packets * overhead, 0);
        }
        let Self { host, bundles, .. } = self;
        host.tell_all(|home, Counts { left: [packets, bytes], waits: [waiting, backlog] }| {
            add(row_of(home, bundles, nodes), bytes + packets * overhead, backlog + waiting * overhead);
        });
    }

    /// Brings rows up to date that [`Nic::report_members`] or this has written last, and says which of them may have changed; one may be
    /// named several times. Linear in the flow queues that held packets meanwhile, unless one was opened, closed or moved: then in all.
    /// Answers how many flow queues and classes it looked at.
    pub fn report_changes(&mut self, rows: &mut Vec<ClassBytes>, mut changed: impl FnMut(usize)) -> usize {
        let (overhead, nodes) = (self.program.overhead.as_u64(), self.program.nodes.len());
        let bytes = |[packets, bytes]: [u64; 2]| bytes + packets * overhead;
        let Self { host, bundles, .. } = self;
        let mut looked = 0;
        let is_known = host.tell_changes(|home, before, now| {
            looked += 1;
            let number = row_of(home, bundles, nodes);
            if let Some(row) = rows.get_mut(number) {
                row.left = row.left + bytes(now.left) - bytes(before.left);
                row.waiting = row.waiting + bytes(now.waits) - bytes(before.waits);
                changed(number);
            }
        });
        if !is_known {
            self.report_members(rows);
            (0..rows.len()).for_each(changed);
            looked = rows.len().max(self.host.open_count());
        }
        looked
    }

    /// The flow queues that have one class and pass the same limits are a member, with a number that it keeps while a policy is in
    /// force. Answers the class and limits of one; `None`: there is no such member, or another number stands for it.
    #[must_use]
    pub fn member(&self, number: usize) -> Option<Placement> {
        let nodes = self.program.nodes.len();
        let Some(bundle) = number.checked_sub(nodes) else {
            let class = NodeId(u32::try_from(number).ok()?);
            let is_class = matches!(self.program.node(class).kind, NodeKind::Class(_));
            return is_class.then(|| Placement { class, limits: Vec::new() });
        };
        let bundle = self.bundles.get(BundleId(u32::try_from(bundle).ok()?))?;
        let limits = self.holds[bundle.holds.range()].iter().map(|hold| hold.limit).collect::<Vec<_>>();
        (!limits.is_empty()).then_some(Placement { class: bundle.class, limits })
    }

    fn row_of(&self, id: BundleId) -> usize {
        row_of(Tagged::bundle(id), &self.bundles, self.program.nodes.len())
    }

    /// Puts a limit whose rate has changed on the wheel again, if a bundle asks.
    fn arm_at(&mut self, limit: LimitId, now: Nanos) {
        let state = &self.limits[limit];
        if state.waiting > 0 && !state.rests {
            self.wheel.set(limit.0, state.due(), now);
        }
    }
}

/// The row of a home. A bundle without limits counts for its class, which may have had one flow queue and no bundle before.
fn row_of(home: Tagged, bundles: &Table<BundleId, Bundle>, nodes: usize) -> usize {
    match (home.as_class(), home.as_bundle()) {
        (Some(class), _) => class.0 as usize,
        (_, Some(id)) if bundles[id].has_limits() => nodes + id.0 as usize,
        (_, Some(id)) => bundles[id].class.0 as usize,
        _ => usize::MAX,
    }
}
