//! Coprocessors that tenants' programs call, in virtual time.
//!
//! Why: a unit has a fixed capacity, and the tenants that share it meet there however their cores are divided.
//! From: FairNIC §3.4 and §4.4; the daemon's `dataplane/units`, with the queues and the limiter that it has.
//! Not here: the operations (`plimsoll-offload` does them, as live), programs (`hosted`), which tenant is next (`plimsoll-smartnic`).
//! Invariant: an engine serves one request at a time; each request that is taken is answered once.

use std::collections::BTreeMap;

use plimsoll_offload::{Request, Unit, Way, Worker};
use plimsoll_scenario::UnitCost;
use plimsoll_smartnic::{Cost, Refused, Ticket, UnitQueue};
use plimsoll_units::{Bytes, Nanos, Span};

use crate::hosted::Waits;
use crate::packet::Packet;

/// A request of a program's, with the packet that it is about.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) request: Request,
    /// The direction in which the packet passes the program.
    pub(crate) way: Way,
    pub(crate) packet: Packet,
    pub(crate) waits: Option<Waits>,
    /// Whether the program has added the packet.
    pub(crate) added: bool,
    /// The first bytes of the frame as the program was given it; what followed was zeros.
    pub(crate) headers: Vec<u8>,
}

/// A call that a unit has answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) tenant: u32,
    pub(crate) call: Call,
    pub(crate) result: u32,
    /// From the call to its answer.
    pub(crate) took: Span,
}

/// A host's coprocessors.
#[derive(Debug)]
pub(crate) struct Units {
    units: [Server; Unit::ALL.len()],
    worker: Worker,
}

/// One coprocessor.
#[derive(Debug)]
struct Server {
    cost: UnitCost,
    /// The queues that the daemon has.
    queue: UnitQueue<Made>,
    /// Calls that engines serve, by their ends and by the order in which they began.
    serving: BTreeMap<(Nanos, u64), (Ticket, Made)>,
    begun: u64,
}

/// A tenant's call.
#[derive(Debug)]
struct Made {
    tenant: u32,
    at: Nanos,
    call: Call,
}

/// Why a call is not taken, as live.
pub(crate) const NO_UNIT: &str = "program_no_unit";
const FULL: &str = "program_unit_full";

impl Units {
    /// Units with these weights, by unit and tenant: 0 for a tenant that may not use the unit. Without `limited` they serve calls as these
    /// come.
    pub(crate) fn new(
        costs: [UnitCost; Unit::ALL.len()],
        weights: &[Vec<u32>; Unit::ALL.len()],
        limited: bool,
    ) -> Self {
        let units = Unit::ALL.map(|unit| Server::new(costs[unit as usize], &weights[unit as usize], limited));
        Self { units, worker: Worker::default() }
    }

    /// Takes a call of a tenant's program.
    ///
    /// # Errors
    /// Why it is not taken.
    pub(crate) fn ask(&mut self, tenant: u32, call: Call, now: Nanos) -> Result<(), &'static str> {
        let unit = &mut self.units[call.request.operation.unit() as usize];
        let cost = Cost(call.request.cost);
        unit.queue.ask(tenant, cost, Made { tenant, at: now, call }).map_err(|why| match why {
            Refused::NoUnit => NO_UNIT,
            Refused::Full => FULL,
        })?;
        unit.serve(now);
        Ok(())
    }

    /// When the next call is answered.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.units.iter().filter_map(Server::next).min()
    }

    /// The next call that is answered by now.
    pub(crate) fn answer(&mut self, now: Nanos) -> Option<Answer> {
        let unit = self.units.iter_mut().find(|unit| unit.next().is_some_and(|at| at <= now))?;
        let Made { tenant, at, mut call } = unit.finish(now)?;
        let result = self.worker.answer(&mut call.request);
        Some(Answer { tenant, call, result, took: now.since(at) })
    }

    /// The packets that it holds, but for those that programs have added.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Packet> {
        self.units.iter().flat_map(Server::holds).filter(|call| !call.added).map(|call| &call.packet)
    }
}

impl Server {
    fn new(cost: UnitCost, weights: &[u32], limited: bool) -> Self {
        let queue = if limited { UnitQueue::new(weights) } else { UnitQueue::in_order(weights) };
        Self { cost, queue, serving: BTreeMap::new(), begun: 0 }
    }

    /// Gives free engines the calls that may be served.
    fn serve(&mut self, now: Nanos) {
        while self.serving.len() < self.cost.engines as usize
            && let Some((ticket, made)) = self.queue.poll()
        {
            let Request { packet, argument, .. } = &made.call.request;
            let takes = self.cost.time_of(Bytes::new((packet.len() + argument.len()) as u64));
            self.serving.insert((now + takes, self.begun), (ticket, made));
            self.begun += 1;
        }
    }

    fn next(&self) -> Option<Nanos> {
        self.serving.first_key_value().map(|(&(at, _), _)| at)
    }

    /// Ends the call that is served first, and begins the next one.
    fn finish(&mut self, now: Nanos) -> Option<Made> {
        let (_, (ticket, made)) = self.serving.pop_first()?;
        self.queue.complete(ticket);
        self.serve(now);
        Some(made)
    }

    fn holds(&self) -> impl Iterator<Item = &Call> {
        let inside = self.serving.values().map(|(_, made)| made);
        self.queue.waiting().chain(inside).map(|made| &made.call)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_offload::Operation;
    use plimsoll_smartnic::queue::WAITING;
    use plimsoll_units::BitRate;

    use super::*;
    use crate::packet::Body;

    /// A call whose packet has this many bytes.
    fn call(operation: Operation, len: usize, argument: Vec<u8>) -> Call {
        let body = Body::Datagram { number: 0, offset: 0, size: 18, last: true };
        let cost = (256 + len + argument.len()) as u32;
        Call {
            request: Request { operation, packet: vec![7; len], offset: 42, most: 2_048, argument, cost },
            way: Way::Ingress,
            packet: Packet::new((0, false), false, len as u32, body),
            waits: None,
            added: false,
            headers: Vec::new(),
        }
    }

    fn deflate(len: usize) -> Call {
        call(Operation::Deflate, len, Vec::new())
    }

    /// A deflate unit of 8 Gb/s, a nanosecond for a byte, with 100 ns for each request.
    fn units(engines: u32, weights: &[u32], limited: bool) -> Units {
        let cost = UnitCost { engines, time: Span::ns(100), rate: Some(BitRate::gbps(8)) };
        Units::new([cost; 3], &[weights.to_vec(), weights.to_vec(), vec![0; weights.len()]], limited)
    }

    const T: fn(u64) -> Nanos = Nanos::new;

    #[test]
    fn a_call_takes_its_time_and_a_second_one_waits_for_an_engine() {
        let mut one = units(1, &[1], true);
        (0..2).for_each(|_| one.ask(0, deflate(1_000), T(50)).expect("room"));
        assert_eq!(one.next(), Some(T(1_150)));
        assert!(one.answer(T(1_149)).is_none());
        let first = one.answer(T(1_150)).expect("done");
        assert_eq!((first.took, first.result), (Span::ns(1_100), 0));
        assert!(first.call.request.packet.len() < 100, "it is compressed");
        assert_eq!((one.next(), one.holds().count()), (Some(T(2_250)), 1));
        assert_eq!(one.answer(T(2_250)).expect("done").took, Span::ns(2_200));
        assert_eq!((one.next(), one.holds().count()), (None, 0));

        let mut two = units(2, &[1], true);
        (0..2).for_each(|_| two.ask(0, deflate(1_000), T(50)).expect("room"));
        let took: Vec<Span> = std::iter::from_fn(|| two.answer(T(1_150))).map(|answer| answer.took).collect();
        assert_eq!(took, [Span::ns(1_100); 2]);
    }

    #[test]
    fn units_do_not_wait_for_each_other() {
        let mut units = units(1, &[1], true);
        units.ask(0, deflate(1_000), T(0)).expect("room");
        units.ask(0, call(Operation::Seal, 500, vec![7; 28]), T(0)).expect("room");
        assert_eq!(units.next(), Some(T(628)), "the argument counts");
        let sealed = units.answer(T(628)).expect("done");
        assert_eq!((sealed.call.request.packet.len(), sealed.result), (516, 0));
        assert_eq!(units.next(), Some(T(1_100)));
    }

    #[test]
    fn what_is_refused_has_a_reason() {
        for limited in [true, false] {
            let mut units = units(1, &[1, 0], limited);
            assert_eq!(units.ask(1, deflate(100), T(0)), Err("program_no_unit"));
            assert_eq!(units.ask(2, deflate(100), T(0)), Err("program_no_unit"));
            let matched = call(Operation::Match, 100, vec![0; 4]);
            assert_eq!(units.ask(0, matched, T(0)), Err("program_no_unit"), "its weight there is 0");
            let taken = (0..1_000).take_while(|_| units.ask(0, deflate(1_000), T(0)).is_ok()).count();
            assert!(taken >= WAITING, "{taken}");
            assert_eq!(units.ask(0, deflate(1_000), T(0)), Err("program_unit_full"));
            assert_eq!(units.holds().count(), taken);
        }
    }

    /// Bytes that each of two tenants which always ask has had served, and the longest that each has waited.
    fn backlogged(mut units: Units, lengths: [usize; 2]) -> [(u64, Span); 2] {
        let mut seen = [(0, Span::ZERO); 2];
        let mut now = T(0);
        while now < T(20_000_000) {
            for (tenant, &length) in (0..).zip(&lengths) {
                while units.ask(tenant, deflate(length), now).is_ok() {}
            }
            now = units.next().expect("it is never idle");
            let Answer { tenant, took, .. } = units.answer(now).expect("done");
            let (bytes, longest) = &mut seen[tenant as usize];
            *bytes += lengths[tenant as usize] as u64 + 256;
            *longest = took.max(*longest);
        }
        seen
    }

    #[test]
    fn tenants_share_bytes_by_weight_whatever_their_lengths() {
        let [(one, _), (other, _)] = backlogged(units(1, &[1, 3], true), [1_500, 200]);
        assert!((2.95..3.05).contains(&(other as f64 / one as f64)), "{one} and {other}");
        let [(one, _), (other, _)] = backlogged(units(1, &[1, 3], false), [1_500, 200]);
        assert!(other * 2 < one, "{one} and {other}: as they come, the one with longer requests has more");
    }

    /// A call of a tenant that seldom asks waits for one quantum of its neighbour's at most: 16 KiB, in which requests have 256 bytes each
    /// beside their length.
    #[test]
    fn a_newcomer_waits_for_one_quantum() {
        let wait = |limited| {
            let mut units = units(1, &[1, 1], limited);
            while units.ask(0, deflate(1_500), T(0)).is_ok() {}
            units.ask(1, deflate(100), T(0)).expect("room");
            let mut answers = std::iter::from_fn(|| units.answer(units.next()?));
            answers.find(|answer| answer.tenant == 1).expect("answered").took
        };
        assert!(wait(true) <= Span::ns(200 + 16_384), "{}", wait(true));
        assert!(wait(false) >= Span::ns(64 * 1_600), "{}", wait(false));
    }
}
