//! Requests of tenants' programs to coprocessors, and what comes back from there.
//!
//! Why: a program's packets are its own thread's to send, whichever thread works on them meanwhile.
//! From: FairNIC §3.4 and §4.4.
//! Not here: the units' threads, which also decide whose request is next (`crate::units`); the programs (`hosted`).
//! Invariant: a request comes back to the tenant that made it, to the program that it has then, or is lost for a counted reason. A tenant
//! has at most [`MOST`] requests at a unit.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_offload::{Request, Unit, Way};
use plimsoll_smartnic::Refused;
use plimsoll_smartnic::queue::WAITING;
use plimsoll_units::{Nanos, Span};

use super::Dataplane;
use super::drops::Loss;
use crate::units::{Answer, Of, UnitPort};

/// A tenant's weights at the units, in their order; 0: it may not use that one.
pub type UnitWeights = [u32; UNITS];

const UNITS: usize = Unit::ALL.len();

/// A tenant's requests at a unit at most, those included that wait there and those that have been answered and not been seen yet.
const MOST: u32 = 2 * WAITING as u32;

/// How soon the engine looks for what a unit has done, while it has something to do.
const LOOK: Span = Span::micros(50);

/// The units, as one engine thread sees them.
#[derive(Debug)]
pub struct Units {
    units: Vec<UnitPort>,
    /// By lane.
    lanes: Vec<AtUnits>,
    /// Requests at all units.
    held: usize,
}

/// A lane's requests.
#[derive(Clone, Debug, Default)]
struct AtUnits {
    /// The units that its tenant may use.
    may: [bool; UNITS],
    /// How many are at each unit, those of an earlier tenant included.
    held: [u32; UNITS],
}

impl Units {
    /// Starts the units' threads, for this many engine threads, each of which has one of the results. Without `limited` they serve requests
    /// as these come.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub fn start(threads: usize, limited: bool) -> std::io::Result<Vec<Self>> {
        let new = || Self { units: Vec::with_capacity(UNITS), lanes: Vec::new(), held: 0 };
        let mut all: Vec<Self> = (0..threads).map(|_| new()).collect();
        for unit in Unit::ALL {
            let ports = UnitPort::start(unit, threads, limited)?;
            all.iter_mut().zip(ports).for_each(|(units, port)| units.units.push(port));
        }
        Ok(all)
    }

    /// Sets the weights of all tenants, by name, and `lanes`, the names of those that have a lane.
    fn set_weights<'a>(
        &mut self,
        weights: &[(String, UnitWeights)],
        lanes: impl Iterator<Item = Option<&'a str>>,
    ) {
        let weights: BTreeMap<&str, UnitWeights> =
            weights.iter().map(|(name, weights)| (name.as_str(), *weights)).collect();
        for (number, unit) in self.units.iter().enumerate() {
            let of_unit = weights.iter().map(|(&name, weights)| (Arc::from(name), weights[number]));
            unit.set_weights(of_unit.filter(|&(_, weight)| weight > 0).collect());
        }
        self.lanes.iter_mut().for_each(|lane| lane.may = [false; UNITS]);
        for (lane, name) in lanes.enumerate() {
            let stated = name.and_then(|name| weights.get(name));
            if self.lanes.len() <= lane {
                self.lanes.push(AtUnits::default());
            }
            self.lanes[lane].may = stated.map_or([false; UNITS], |weights| weights.map(|weight| weight > 0));
        }
    }

    /// Takes a request of a tenant's program.
    fn ask(&mut self, of: Of, request: Request) -> Result<(), Loss> {
        let number = request.operation.unit() as usize;
        let lane = self.lanes.get_mut(of.lane as usize).filter(|lane| lane.may[number]);
        let held = &mut lane.ok_or(Loss::ProgramNoUnit)?.held[number];
        if *held >= MOST {
            return Err(Loss::ProgramUnitFull);
        }
        (*held, self.held) = (*held + 1, self.held + 1);
        self.units[number].ask(of, request);
        Ok(())
    }

    /// The next answer of a unit.
    fn answer(&mut self) -> Option<Answer> {
        let (number, answer) =
            self.units.iter().enumerate().find_map(|(number, unit)| Some((number, unit.answer()?)))?;
        self.held -= 1;
        if let Some(lane) = self.lanes.get_mut(answer.of.lane as usize) {
            lane.held[number] -= 1;
        }
        Some(answer)
    }

    /// Whether requests of this lane are at units.
    fn holds(&self, lane: u32) -> bool {
        self.lanes.get(lane as usize).is_some_and(|lane| lane.held != [0; UNITS])
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
        let lanes = self.tenants.lanes.iter().map(|lane| {
            let lane = lane.as_ref().filter(|lane| lane.tenant.is_some())?;
            Some(lane.name.as_str())
        });
        units.set_weights(weights, lanes);
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
        units.ask(Of { lane, tenant: Arc::clone(tenant), way }, request)
    }

    /// Gives programs back what coprocessors have answered. Answers when to look again, while some have something to do.
    pub(super) fn tend_units(&mut self, now: Nanos) -> Option<Nanos> {
        if self.at_units() == 0 {
            return None;
        }
        while let Some(Answer { of, outcome }) = self.units.as_mut()?.answer() {
            let lane =
                self.tenants.lane(of.lane).filter(|lane| lane.tenant.is_some() && *lane.name == *of.tenant);
            let Some(lane) = lane else {
                self.uplink.tally.lost(Loss::ReceiverGone);
                continue;
            };
            let (request, result) = match outcome {
                Ok(answered) => answered,
                Err(Refused::NoUnit) => {
                    lane.tally.lost(Loss::ProgramNoUnit);
                    continue;
                }
                Err(Refused::Full) => {
                    lane.tally.lost(Loss::ProgramUnitFull);
                    continue;
                }
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
        (self.at_units() > 0).then(|| now + LOOK)
    }

    /// Packets at coprocessors.
    pub(super) fn at_units(&self) -> usize {
        self.units.as_ref().map_or(0, |units| units.held)
    }

    /// Whether packets of this lane are at coprocessors.
    pub(super) fn has_at_units(&self, lane: u32) -> bool {
        self.units.as_ref().is_some_and(|units| units.holds(lane))
    }
}
