//! What is looked at, host by host, to say whether tenants' promises held.
//!
//! Why: a simulated run shall be judged as a live host is, by the same code, and name who or what broke a promise.
//! From: the daemon's look each second (`plimsoll_slo::Watched`); here at the ends of windows of virtual time.
//! Not here: the judgement (`plimsoll_slo`), the policy's delay bounds (`promise`).
//! Invariant: it changes nothing that happens, neither events nor their order.

use std::sync::Arc;

use plimsoll_policy::Program;
use plimsoll_scenario::Scenario;
use plimsoll_slo::{InwardWatched, LaneWatched, Looks, Parts, Pulse, SloReport, UplinkWatched, Watched};
use plimsoll_units::{Nanos, Span};

/// What passed at one host with an engine.
#[derive(Debug)]
pub(crate) struct Watch {
    program: Arc<Program>,
    /// By the scenario's tenants; those that live here.
    lanes: Vec<Option<Lane>>,
    uplink: UplinkWatched,
    /// How long the daemon was gone, since the last look.
    late: Span,
    down_since: Option<Nanos>,
    looks: Looks,
}

/// One tenant.
#[derive(Debug)]
struct Lane {
    seen: LaneWatched,
    parts: Box<Parts>,
    /// What of each of its targets each way has.
    halves: Vec<Span>,
    /// Packets that came to their end.
    delivered: u64,
}

/// What else a look needs of the host's parts.
pub(crate) struct Beside<'a> {
    /// What its threads have worked.
    pub(crate) cpu: Span,
    /// What a tenant's packets on the way in, of which so many were delivered, took of the CPU.
    pub(crate) inward: &'a dyn Fn(u32, u64) -> Span,
    /// How often other hosts' tenants held a tenant's packets.
    pub(crate) pressed: &'a dyn Fn(u32) -> Vec<(String, u64)>,
    /// How often a tenant's ring was not read.
    pub(crate) held_back: &'a dyn Fn(u32) -> u64,
}

impl Watch {
    /// For a host on which these of the scenario's tenants live.
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

    /// A tenant's packet came from its ring.
    #[inline]
    pub(crate) fn offered(&mut self, tenant: Option<u32>, bytes: u32) {
        if let Some(lane) = self.lane(tenant) {
            lane.seen.offered_bytes += u64::from(bytes);
        }
    }

    /// So many frames of a tenant's were lost on the way out.
    pub(crate) fn lost(&mut self, tenant: Option<u32>, frames: u32, why: &'static str) {
        if let Some(lane) = self.lane(tenant) {
            *lane.seen.losses.entry(why).or_default() += u64::from(frames);
        }
    }

    /// One that had left was lost between hosts.
    pub(crate) fn strayed(&mut self, tenant: Option<u32>) {
        if let Some(lane) = self.lane(tenant) {
            lane.seen.strayed += 1;
        }
    }

    /// A frame of a tenant's has left; the last one of its packet, which limits held and which waited otherwise.
    #[inline]
    pub(crate) fn left(&mut self, tenant: Option<u32>, bytes: u32, last: Option<(Span, Span)>) {
        if let Some(Lane { parts, halves, .. }) = self.lane(tenant) {
            parts.sent_bytes += u64::from(bytes);
            if let Some((limited, waited)) = last {
                parts.left(limited, waited, 1, halves);
            }
        }
    }

    /// It went on the uplink, or was lost there.
    #[inline]
    pub(crate) fn crossed(&mut self, tenant: Option<u32>, bytes: u32, lost: bool) {
        self.uplink.sent_bytes += u64::from(bytes);
        if lost {
            self.strayed(tenant);
        }
    }

    /// A frame has come for a tenant.
    #[inline]
    pub(crate) fn came(&mut self, tenant: Option<u32>, bytes: u32) {
        self.uplink.received_bytes += u64::from(bytes);
        if let Some(lane) = self.lane(tenant) {
            lane.seen.inward.bytes += u64::from(bytes);
        }
    }

    /// A frame was delivered without waiting: from a tenant of the same host, or where nothing models the way in.
    #[inline]
    pub(crate) fn took(&mut self, tenant: Option<u32>, bytes: u32) {
        if let Some(lane) = self.lane(tenant) {
            lane.seen.received_bytes += u64::from(bytes);
        }
    }

    /// It was delivered, after this wait in the NIC and that with the engine.
    #[inline]
    pub(crate) fn delivered(&mut self, tenant: Option<u32>, bytes: u32, in_nic: Option<Span>, with_us: Span) {
        if let Some(Lane { seen, parts, halves, delivered }) = self.lane(tenant) {
            *delivered += 1;
            seen.received_bytes += u64::from(bytes);
            parts.delivered(in_nic, with_us, halves);
        }
    }

    /// Its guest's device had no room for it.
    pub(crate) fn unread(&mut self, tenant: Option<u32>) {
        if let Some(lane) = self.lane(tenant) {
            lane.parts.unread += 1;
        }
    }

    /// It never came to its tenant's queue.
    pub(crate) fn nic_full(&mut self, tenant: Option<u32>) {
        self.uplink.kernel_drops += 1;
        if let Some(lane) = self.lane(tenant) {
            lane.seen.inward.nic_full += 1;
        }
    }

    /// It was beyond what is admitted of strangers.
    pub(crate) fn over_max(&mut self, tenant: Option<u32>) {
        if let Some(lane) = self.lane(tenant) {
            lane.seen.inward.over_max += 1;
        }
    }

    /// It found its tenant's queue full.
    pub(crate) fn queue_full(&mut self, tenant: Option<u32>) {
        if let Some(lane) = self.lane(tenant) {
            lane.seen.inward.queue_full += 1;
        }
    }

    /// The daemon has ended, or one has begun.
    pub(crate) fn down(&mut self, down: bool, now: Nanos) {
        self.note_gap(now);
        self.down_since = down.then_some(now);
    }

    fn note_gap(&mut self, now: Nanos) {
        let gap = self.down_since.map_or(Span::ZERO, |since| now.since(since));
        self.late = self.late.max(gap);
    }

    /// A window ends.
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
            lanes: lanes.collect(),
            uplink: self.uplink,
            pulse,
        });
    }

    /// How promises fared in the part of the run that is measured.
    pub(crate) fn report(&self) -> SloReport {
        self.looks.report()
    }
}
