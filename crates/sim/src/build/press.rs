//! Backpressure of each host, from its policy.
//!
//! Why: a host counts and slows down flows as its daemon would with the same policy file.
//! From: `docs/scenarios.md`, "Backpressure".
//! Not here: backpressure at work (`press` and `world/pressing`).
//! Invariant: a run in which no policy states backpressure is the same as before there was any.

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
            Some(Watch::Cgroup(_) | Watch::Pids(_)) => return Err(self.no_such_load(host)),
            Some(Watch::Tenant(name)) => self.scenario.tenants.iter().position(|tenant| tenant.name == *name),
            Some(Watch::Engine) | None => None,
        };
        let tenants = || self.scenario.tenants.iter();
        let counts = |name: &String| stated.as_ref().is_some_and(|stated| stated.tenants.contains(name));
        let counted = tenants().map(|tenant| lives_on(tenant, host) && counts(&tenant.name)).collect();
        let keeps = |name: &String| {
            config.tenants.iter().any(|tenant| tenant.name == *name && tenant.ecn == Ecn::Untouched)
        };
        let untouched = tenants().map(|tenant| keeps(&tenant.name)).collect();
        let poll =
            stated.as_ref().and_then(|stated| Some(stated.press.as_ref()?.poll)).unwrap_or(Span::millis(1));
        // A daemon begins at any moment of a poll.
        let mut chance = Chance::of(self.seed, &format!("backpressure {}", host.name));
        let first = Nanos::ZERO + Span::ns((chance.unit() * poll.as_u64() as f64) as u64);
        let seed = (u64::from(chance.below(u32::MAX)) << 32) | u64::from(chance.below(u32::MAX));
        let model = self.system.press_model.unwrap_or(self.scenario.press_model);
        let watched = watched.map(|index| index as u32);
        let plan = Plan { node, stated, model, counted, untouched, watched, seed, first };
        let source = self.source(Source::Press(node));
        let here = &mut self.world.nodes[node as usize];
        here.press = Some(Box::new(Press::new(plan, Nanos::ZERO)));
        here.press_source = source;
        Ok(())
    }

    /// Leaves backpressure out if no host's policy states it.
    pub(super) fn press_only_if_stated(&mut self) {
        let stated = |press: &Press| press.plan.stated.is_some();
        if !self.world.nodes.iter().filter_map(|node| node.press.as_deref()).any(stated) {
            self.world.nodes.iter_mut().for_each(|node| node.press = None);
        }
    }

    fn no_such_load(&self, host: &Host) -> SimError {
        let message = format!("host `{}` watches a cgroup or threads, and virtual time has none", host.name);
        let problem = Problem::new(host.place, message).label("nothing to watch");
        self.wrong(problem.help("write `watch: engine` or `watch: {tenant: ..}` under `virtual`"))
    }
}
