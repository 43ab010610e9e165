//! Backpressure of each host, from its policy.
//!
//! Why: a host counts and slows down flows as its daemon would with the same policy file.
//! From: `docs/scenarios.md`, "Backpressure".
//! Not here: backpressure at work (`press` and `world/pressing`).
//! Invariant: a run in which no policy states backpressure or mediates ECN is the same as before there was any.

use plimsoll_policy::{Config, Ecn, Watch};
use plimsoll_scenario::{Host, Problem};
use plimsoll_units::{Nanos, Span};

use super::{Builder, lives_on};
use crate::chance::Chance;
use crate::error::SimError;
use crate::press::{Plan, Press};
use crate::world::Source;

impl Builder<'_> {
    /// Gives a host what its policy says about heavy flows; one whose policy says nothing obeys the other hosts.
    pub(super) fn press(&mut self, node: u32, host: &Host, config: &Config) -> Result<(), SimError> {
        let stated = config.backpressure.clone();
        let watch = stated.as_ref().and_then(|stated| Some(&stated.press.as_ref()?.watch));
        let watched = match watch {
            Some(Watch::Cgroup(_) | Watch::Pids(_)) => {
                return Err(self.press_refused(
                    host,
                    "watches a cgroup or threads, and virtual time has none",
                    "write `watch: engine` or `watch: {tenant: ..}` under `virtual`",
                ));
            }
            Some(Watch::Tenant(name)) => self.scenario.tenants.iter().position(|tenant| tenant.name == *name),
            Some(Watch::Engine) | None => None,
        };
        let tenants = || self.scenario.tenants.iter();
        let counts = |name: &String| stated.as_ref().is_some_and(|stated| stated.tenants.contains(name));
        let counted = tenants().map(|tenant| lives_on(tenant, host) && counts(&tenant.name)).collect();
        let ecn = |name: &String| {
            config.tenants.iter().find(|tenant| tenant.name == *name).map(|tenant| tenant.ecn)
        };
        let untouched = tenants().map(|tenant| ecn(&tenant.name) == Some(Ecn::Untouched)).collect();
        let mediated =
            tenants().map(|tenant| ecn(&tenant.name).filter(|_| lives_on(tenant, host))?.mediate()).collect();
        let poll =
            stated.as_ref().and_then(|stated| Some(stated.press.as_ref()?.poll)).unwrap_or(Span::millis(1));
        // A daemon begins at any moment of a poll. Where nothing is watched, updates come at whole milliseconds, so that an
        // experiment on counting can say what comes between two of them.
        let mut chance = Chance::of(self.seed, &format!("backpressure {}", host.name));
        let phase = Span::ns((chance.unit() * poll.as_u64() as f64) as u64);
        let first = Nanos::ZERO + if watch.is_some() { phase } else { poll };
        let seed = (u64::from(chance.below(u32::MAX)) << 32) | u64::from(chance.below(u32::MAX));
        let model = self.system.press_model.unwrap_or(self.scenario.press_model);
        let watched = watched.map(|index| index as u32);
        let plan = Plan { node, stated, model, counted, untouched, mediated, watched, seed, first };
        let source = self.source(Source::Press(node));
        let here = &mut self.world.nodes[node as usize];
        here.press = Some(Box::new(Press::new(plan, Nanos::ZERO)));
        here.press_source = source;
        Ok(())
    }

    /// Tells each host which tenants keep their packets as they are, as the map of the fleet does live. Leaves backpressure out
    /// if no host's policy states it or mediates ECN.
    pub(super) fn press_only_if_stated(&mut self) {
        let hosts = || self.world.nodes.iter().filter_map(|node| node.press.as_deref());
        let keeps = |tenant: usize| hosts().any(|press| press.plan.untouched[tenant]);
        let untouched: Vec<bool> = (0..self.scenario.tenants.len()).map(keeps).collect();
        for press in self.world.nodes.iter_mut().filter_map(|node| node.press.as_deref_mut()) {
            press.plan.untouched.clone_from(&untouched);
        }
        let stated = |press: &Press| press.plan.stated.is_some() || !press.guests.is_empty();
        if !self.world.nodes.iter().filter_map(|node| node.press.as_deref()).any(stated) {
            self.world.nodes.iter_mut().for_each(|node| node.press = None);
        }
    }

    fn press_refused(&self, host: &Host, what: &str, help: &str) -> SimError {
        let message = format!("host `{}` {what}", host.name);
        let problem = Problem::new(host.place, message).label("not in virtual time");
        self.wrong(problem.help(help))
    }
}
