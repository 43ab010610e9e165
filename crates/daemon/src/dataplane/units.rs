//! Requests of tenants' programs to coprocessors: they wait for their tenant's share of the unit.
//!
//! Why: a unit serves what comes first, so that a tenant with longer requests would get most of it.
//! From: FairNIC §3.4 and §4.4; the limiter is `plimsoll-smartnic`'s.
//! Not here: the threads (`crate::units`), the programs (`hosted`).
//! Invariant: a request comes back to the tenant that made it, to the program that it has then, or is lost for a counted reason.

use std::sync::Arc;

use plimsoll_offload::{Request, Unit, Way};
use plimsoll_smartnic::{Cost, Refused, Ticket, UnitQueue};
use plimsoll_units::{Nanos, Span};

use super::Dataplane;
use super::drops::Loss;
use crate::units::{Job, UnitThread};

/// A tenant's weights at the units, in their order; 0: it may not use that one.
pub type UnitWeights = [u32; Unit::ALL.len()];

/// How soon the engine looks for what a unit has done, while it has something to do.
const LOOK: Span = Span::micros(50);

/// Whose request it is.
#[derive(Clone, Debug)]
struct Of {
    lane: u32,
    /// A reload may give the lane to another tenant, which must not get the packet.
    tenant: Arc<str>,
    way: Way,
}

/// The units, with the requests that wait for them.
#[derive(Debug)]
pub struct Units {
    units: Vec<Served>,
}

/// One unit: requests of lanes wait, and its thread serves them.
#[derive(Debug)]
struct Served {
    queue: UnitQueue<(Of, Request)>,
    thread: UnitThread<(Of, Ticket)>,
}

impl Units {
    /// Starts the units' threads.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub fn start() -> std::io::Result<Self> {
        let serve = |unit| Ok(Served { queue: UnitQueue::new(&[]), thread: UnitThread::start(unit)? });
        Ok(Self { units: Unit::ALL.into_iter().map(serve).collect::<std::io::Result<_>>()? })
    }

    /// Sets the tenants' weights, by lane. Requests that wait go on waiting, but for those of tenants that are gone, which `stays` tells by
    /// lane and name; answers how many these are.
    fn set_weights(&mut self, weights: &[UnitWeights], stays: impl Fn(usize, &str) -> bool) -> usize {
        let mut gone = 0;
        for (number, unit) in self.units.iter_mut().enumerate() {
            let of_unit: Vec<u32> = weights.iter().map(|weights| weights[number]).collect();
            gone += unit.queue.set_weights(&of_unit, |lane, (of, _)| stays(lane as usize, &of.tenant));
        }
        gone
    }

    /// Takes a request of a tenant's program.
    fn ask(&mut self, lane: u32, tenant: &Arc<str>, way: Way, request: Request) -> Result<(), Loss> {
        let unit = &mut self.units[request.operation.unit() as usize];
        let of = Of { lane, tenant: Arc::clone(tenant), way };
        let asked = unit.queue.ask(lane, Cost(request.cost), (of, request));
        asked.map_err(|why| match why {
            Refused::NoUnit => Loss::ProgramNoUnit,
            Refused::Full => Loss::ProgramUnitFull,
        })?;
        unit.feed();
        Ok(())
    }

    /// Hands requests to the units, as far as the limiters let them go there.
    fn feed(&mut self) {
        self.units.iter_mut().for_each(Served::feed);
    }

    /// The next request that a unit has answered: whose it is, the request, and the result.
    fn done(&mut self) -> Option<(Of, Request, u32)> {
        self.units.iter_mut().find_map(|unit| {
            let Job { of: (of, ticket), request, result } = unit.thread.done()?;
            unit.queue.complete(ticket);
            Some((of, request, result))
        })
    }

    /// Requests that wait or are being served.
    fn held(&self) -> usize {
        self.units.iter().map(|unit| unit.queue.held()).sum()
    }
}

impl Served {
    /// Hands over what the limiter lets go.
    fn feed(&mut self) {
        while let Some((ticket, (of, request))) = self.queue.poll() {
            // There is room for as many as may be inside.
            let _ = self.thread.ask(Job { of: (of, ticket), request, result: 0 });
        }
    }
}

impl Dataplane {
    /// Puts coprocessors in, and each tenant's weights at them.
    pub fn set_units(&mut self, units: Box<Units>, weights: &[(String, UnitWeights)]) {
        self.units = Some(units);
        self.weigh_units(weights);
    }

    /// Sets the tenants' weights at the coprocessors.
    pub(super) fn weigh_units(&mut self, weights: &[(String, UnitWeights)]) {
        let Some(units) = &mut self.units else { return };
        let lanes = &self.tenants.lanes;
        let name = |lane: usize| {
            lanes.get(lane)?.as_ref().filter(|lane| lane.tenant.is_some()).map(|lane| lane.name.as_str())
        };
        let of = |name: &str| {
            weights.iter().find(|(known, _)| known == name).map_or([0; 3], |(_, weights)| *weights)
        };
        let by_lane: Vec<UnitWeights> = (0..lanes.len()).map(|lane| name(lane).map_or([0; 3], of)).collect();
        let gone = units.set_weights(&by_lane, |lane, tenant| name(lane) == Some(tenant));
        self.uplink.tally.lost_many(Loss::ReceiverGone, gone as u64);
    }

    /// Takes a request of a tenant's program to a coprocessor.
    pub(super) fn ask_unit(
        &mut self,
        lane: u32,
        tenant: &Arc<str>,
        way: Way,
        request: Request,
    ) -> Result<(), Loss> {
        let Some(units) = &mut self.units else { return Err(Loss::ProgramNoUnit) };
        units.ask(lane, tenant, way, request)
    }

    /// Gives programs back what coprocessors have answered. Answers when to look again, while some have something to do.
    pub(super) fn tend_units(&mut self, now: Nanos) -> Option<Nanos> {
        if self.at_units() == 0 {
            return None;
        }
        while let Some((of, request, result)) = self.units.as_mut()?.done() {
            let lane =
                self.tenants.lane(of.lane).filter(|lane| lane.tenant.is_some() && *lane.name == *of.tenant);
            let Some(lane) = lane else {
                self.uplink.tally.lost(Loss::ReceiverGone);
                continue;
            };
            let back = lane.program.as_mut().map(|hosted| hosted.come_back(&request, result, of.way));
            match (back, of.way) {
                (Some(true), _) => self.inward.set_work(of.lane, true),
                (Some(false), _) => lane.tally.lost(Loss::ProgramNoRoom),
                // A reload has taken the program out meanwhile.
                (None, Way::Ingress) => self.give_to_tenant(of.lane, &request.packet),
                (None, Way::Egress) => self.send_of_program(of.lane as usize, &request.packet, now),
            }
        }
        self.scheduler.ring(now);
        let units = self.units.as_mut()?;
        units.feed();
        (units.held() > 0).then(|| now + LOOK)
    }

    /// Packets at coprocessors.
    pub(super) fn at_units(&self) -> usize {
        self.units.as_ref().map_or(0, |units| units.held())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use plimsoll_offload::Operation;
    use plimsoll_smartnic::queue::WAITING as MOST;

    use super::*;

    fn request(length: usize) -> Request {
        let packet = (0..length as u32).map(|n| ((n * n) >> 3) as u8).collect();
        Request {
            operation: Operation::Deflate,
            packet,
            offset: 0,
            most: 2_048,
            argument: Vec::new(),
            cost: length as u32,
        }
    }

    fn units(weights: &[UnitWeights]) -> Units {
        let mut units = Units::start().expect("threads");
        units.set_weights(weights, |_, _| true);
        units
    }

    #[test]
    fn tenants_that_always_want_a_unit_get_its_bytes_by_weight() {
        let mut units = units(&[[1, 0, 0], [3, 0, 0]]);
        let names: [Arc<str>; 2] = ["a".into(), "b".into()];
        // The one with the smaller share has the longer requests, and as many of them.
        let lengths = [1_500, 200];
        let mut served = [0_u64; 2];
        let begun = Instant::now();
        while served[0] < 1_000_000 {
            assert!(begun.elapsed() < Duration::from_secs(20), "not in time: {served:?}");
            for lane in 0..2 {
                while units
                    .ask(lane, &names[lane as usize], Way::Egress, request(lengths[lane as usize]))
                    .is_ok()
                {}
            }
            units.feed();
            while let Some((of, request, _)) = units.done() {
                served[of.lane as usize] += u64::from(request.cost);
            }
        }
        let ratio = served[1] as f64 / served[0] as f64;
        assert!((2.7..3.3).contains(&ratio), "{served:?}");
    }

    #[test]
    fn other_weights_take_effect_while_requests_are_served_and_wait() {
        let mut units = units(&[[1, 0, 0]]);
        let name: Arc<str> = "a".into();
        let asked = (0..).take_while(|_| units.ask(0, &name, Way::Ingress, request(1_000)).is_ok()).count();
        assert!(asked >= MOST, "{asked}: some are in the unit at once");
        assert_eq!(units.set_weights(&[[0; 3], [1, 0, 0]], |_, tenant| tenant == "a"), 0);
        assert_eq!(units.ask(0, &name, Way::Ingress, request(9)), Err(Loss::ProgramNoUnit));
        assert_eq!(units.ask(2, &name, Way::Ingress, request(9)), Err(Loss::ProgramNoUnit));
        units.ask(1, &name, Way::Ingress, request(9)).expect("it may");
        let (mut back, begun) = (0, Instant::now());
        while units.held() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(20), "{back} are back");
            units.feed();
            back += std::iter::from_fn(|| units.done()).count();
        }
        assert_eq!(back, asked + 1);
        (0..MOST).for_each(|_| units.ask(1, &name, Way::Ingress, request(1_000)).expect("room"));
        let gone = units.set_weights(&[[0; 3], [1, 0, 0]], |_, _| false);
        assert!(
            (1..=MOST).contains(&gone) && units.held() == MOST - gone,
            "what was not in the unit is gone"
        );
    }
}
