//! The counters of each host by which tenants' promises are judged.
//!
//! Why: the code that judges a live host also judges a simulated run, and names the cause of a broken promise.
//! From: the daemon's reading each second (`plimsoll_slo::Watched`); here at the ends of windows of virtual time.
//! Not here: the judgement (`plimsoll_slo`), the policy's delay bounds (`bounds`).
//! Invariant: it changes neither events nor their order.

use std::sync::Arc;

use plimsoll_policy::Program;
use plimsoll_scenario::Scenario;
use plimsoll_slo::{InwardWatched, LaneWatched, Looks, Parts, Pulse, SloReport, UplinkWatched, Watched};
use plimsoll_units::{Nanos, Span};

/// The counters of a host with an engine.
#[derive(Debug)]
pub(crate) struct Watch {
    program: Arc<Program>,
    /// By tenant of the scenario: its counters, if it lives here.
    lanes: Vec<Option<Lane>>,
    uplink: UplinkWatched,
    /// The longest time that the daemon was down, since the last reading.
    late: Span,
    down_since: Option<Nanos>,
    looks: Looks,
}

/// The counters of a tenant.
#[derive(Debug)]
struct Lane {
    seen: LaneWatched,
    parts: Box<Parts>,
    /// The half of each delay target, for the way out and the way in each.
    halves: Vec<Span>,
    /// Packets delivered to it.
    delivered: u64,
}

/// Counters of the host's other parts.
pub(crate) struct Beside<'a> {
    /// The CPU time of its threads.
    pub(crate) cpu: Span,
    /// CPU time of a tenant's packets on the way in, by the tenant and its number of delivered packets.
    pub(crate) inward: &'a dyn Fn(u32, u64) -> Span,
    /// How often the limits of tenants on other hosts held a tenant's packets.
    pub(crate) pressed: &'a dyn Fn(u32) -> Vec<(String, u64)>,
    /// How many of a tenant's packets waited because its ring was not read.
    pub(crate) held_back: &'a dyn Fn(u32) -> u64,
}

impl Watch {
    /// Counters for the tenants of the scenario that live on this host.
    pub(crate) fn new(scenario: &Scenario, host: &str, program: &Program) -> Self {
        let lane = |tenant: &plimsoll_scenario::Tenant| {
            let lives_here = tenant.homes.iter().any(|home| home.host == host);
            let known = program.tenants.iter().find(|known| known.name == tenant.name);
            let known = known.filter(|_| lives_here)?;
            let halves: Vec<Span> = known.slo.delay.iter().map(|target| target.half()).collect();
            let seen = LaneWatched { name: tenant.name.clone(), ..LaneWatched::default() };
            Some(Lane { seen, parts: Box::new(Parts::new(halves.len())), halves, delivered: 0 })
        };
        let mut watch = Self {
            program: Arc::new(program.clone()),
            lanes: scenario.tenants.iter().map(lane).collect(),
            uplink: UplinkWatched::default(),
            late: Span::ZERO,
            down_since: None,
            looks: Looks::of(scenario.measure.from, scenario.measure.to),
        };
        let nothing = Beside {
            cpu: Span::ZERO,
            inward: &|_, _| Span::ZERO,
            pressed: &|_| Vec::new(),
            held_back: &|_| 0,
        };
        watch.look(Nanos::ZERO, &nothing);
        watch
    }

    fn lane(&mut self, tenant: Option<u32>) -> Option<&mut Lane> {
        self.lanes.get_mut(tenant? as usize)?.as_mut()
    }

    /// Counts a tenant's packet that came from its ring.
    #[inline]
    pub(crate) fn offered(&mut self, tenant: Option<u32>, bytes: u32) {
        if let Some(lane) = self.lane(tenant) {
            lane.seen.offered_bytes += u64::from(bytes);
        }
    }

    /// Counts a tenant's frames that were lost on the way out.
    pub(crate) fn lost(&mut self, tenant: Option<u32>, frames: u32, why: &'static str) {
        if let Some(lane) = self.lane(tenant) {
            *lane.seen.losses.entry(why).or_default() += u64::from(frames);
        }
    }

    /// Counts a tenant's packet that was lost between hosts.
    pub(crate) fn strayed(&mut self, tenant: Option<u32>) {
        if let Some(lane) = self.lane(tenant) {
            lane.seen.strayed += 1;
        }
    }

    /// Counts a tenant's frame that has left; `last` has the times that limits held its packet and that it waited, if this was
    /// the packet's last frame.
    #[inline]
    pub(crate) fn left(&mut self, tenant: Option<u32>, bytes: u32, last: Option<(Span, Span)>) {
        if let Some(Lane { parts, halves, .. }) = self.lane(tenant) {
            parts.sent_bytes += u64::from(bytes);
            if let Some((limited, waited)) = last {
                parts.left(limited, waited, 1, halves);
            }
        }
    }

    /// Counts a frame that went on the uplink, or was lost there.
    #[inline]
    pub(crate) fn crossed(&mut self, tenant: Option<u32>, bytes: u32, lost: bool) {
        self.uplink.sent_bytes += u64::from(bytes);
        if lost {
            self.strayed(tenant);
        }
    }

    /// Counts a frame that has come for a tenant.
    #[inline]
    pub(crate) fn came(&mut self, tenant: Option<u32>, bytes: u32) {
        self.uplink.received_bytes += u64::from(bytes);
        if let Some(lane) = self.lane(tenant) {
            lane.seen.inward.bytes += u64::from(bytes);
        }
    }

    /// Counts a frame that was delivered without a wait: from a tenant of the same host, or on a host without a modelled way
    /// in.
    #[inline]
    pub(crate) fn took(&mut self, tenant: Option<u32>, bytes: u32) {
        if let Some(lane) = self.lane(tenant) {
            lane.seen.received_bytes += u64::from(bytes);
        }
    }

    /// Counts a frame that was delivered, after these waits in the NIC and in the engine.
    #[inline]
    pub(crate) fn delivered(&mut self, tenant: Option<u32>, bytes: u32, in_nic: Option<Span>, with_us: Span) {
        if let Some(Lane { seen, parts, halves, delivered }) = self.lane(tenant) {
            *delivered += 1;
            seen.received_bytes += u64::from(bytes);
            parts.delivered(in_nic, with_us, 1, halves);
        }
    }

    /// Counts a frame for which its guest's device had no room.
    pub(crate) fn unread(&mut self, tenant: Option<u32>) {
        if let Some(lane) = self.lane(tenant) {
            lane.parts.unread += 1;
        }
    }

    /// Counts a frame that was lost before it came to its tenant's queue.
    pub(crate) fn nic_full(&mut self, tenant: Option<u32>) {
        self.uplink.kernel_drops += 1;
        if let Some(lane) = self.lane(tenant) {
            lane.seen.inward.nic_full += 1;
        }
    }

    /// Counts a frame that was dropped because strangers, or all senders, exceeded the tenant's maximum.
    pub(crate) fn over_max(&mut self, tenant: Option<u32>) {
        if let Some(lane) = self.lane(tenant) {
            lane.seen.inward.over_max += 1;
        }
    }

    /// Counts a frame that found its tenant's queue full.
    pub(crate) fn queue_full(&mut self, tenant: Option<u32>) {
        if let Some(lane) = self.lane(tenant) {
            lane.seen.inward.queue_full += 1;
        }
    }

    /// Notes that the daemon has ended, or started again.
    pub(crate) fn down(&mut self, down: bool, now: Nanos) {
        self.note_gap(now);
        self.down_since = down.then_some(now);
    }

    fn note_gap(&mut self, now: Nanos) {
        let gap = self.down_since.map_or(Span::ZERO, |since| now.since(since));
        self.late = self.late.max(gap);
    }

    /// Reads all counters at the end of a window.
    pub(crate) fn look(&mut self, now: Nanos, beside: &Beside<'_>) {
        self.note_gap(now);
        let lanes = (0..).zip(&mut self.lanes).filter_map(|(tenant, lane)| {
            let lane = lane.as_mut()?;
            lane.seen.pressed = (beside.pressed)(tenant).into_iter().collect();
            lane.seen.held_back = (beside.held_back)(tenant);
            let cpu = (beside.inward)(tenant, lane.delivered);
            let parts = (!lane.parts.is_empty()).then(|| lane.parts.clone());
            lane.parts.clear(lane.halves.len());
            Some(LaneWatched {
                parts,
                inward: InwardWatched { cpu, ..lane.seen.inward },
                ..lane.seen.clone()
            })
        });
        let pulse = Pulse { cpu: beside.cpu, no_core: None, late: core::mem::take(&mut self.late) };
        self.looks.note(Watched {
            at: now,
            program: Arc::clone(&self.program),
            rates: Arc::default(),
            lanes: lanes.collect(),
            uplink: self.uplink,
            pulse,
        });
    }

    /// The report on promises, for the measured part of the run.
    pub(crate) fn report(&self) -> SloReport {
        self.looks.report()
    }
}
