//! Sharing: whose frames are next, between fetching and delivering, and what their visit is charged.
//!
//! Why: fetching must go on while frames wait, or the port drops them unseen; and no tenant's frames may keep the core from another's.
//! From: PicNIC §5.2: fetch first, within a part of the time; deliver by each tenant's share of the CPU (`nic`'s ingress), charged with
//! the time that it took.
//! Not here: the shares (`nic`), a tenant's program (`hosted`).
//! Invariant: a turn fetches and delivers bounded numbers of frames.

use plimsoll_nic::Drain;
use plimsoll_ports::Port;
use plimsoll_units::{Nanos, Span};

use super::super::apart::Charged;
use super::super::cpu::Core;
use super::super::hosted::{LONGEST_CALL, ProgramNow};
use super::super::{BATCH, Dataplane, Part};
use super::{COMMON, QUANTUM};

/// Most frames delivered in a turn, and most frames fetched.
const DELIVERIES: usize = 128;
const FETCHES: usize = 512;

/// Time that programs may take before frames have their turn to depart; the last call that begins within it ends.
const PROGRAMS: Span = Span::micros(100);

/// Frames that are fetched at once, unless they come from other hosts of a fleet, as one that has to be opened takes a microsecond. The
/// clock is read once for them, and the delays of a tenant's frames among them are noted together.
const FETCH: usize = 128;

impl Dataplane {
    /// Sets the part of the time, in thousandths, that fetching may take while frames wait. To be called before any frame
    /// has arrived.
    pub fn set_drain_share(&mut self, share: u32) {
        self.inward.drain = Drain::new(share);
    }

    /// Fetches frames from the uplink, within fetching's share of the time, and delivers waiting frames, each tenant's by
    /// its share. Answers how many were fetched and delivered. `begun` is when the part of the turn before this one began, which may
    /// have written to tenants.
    pub(in super::super) fn take_in(
        &mut self,
        core: &mut impl Core,
        begun: Nanos,
        clock: &impl Fn(Part) -> Nanos,
    ) -> usize {
        let (mut fetched, mut delivered, mut programs) = (0, 0, Span::ZERO);
        let mut now = clock(Part::Depart);
        self.backpressure.near.end(now.since(begun));
        self.part_took(now.since(begun), Charged::No, now);
        let mut empty = !self.uplink_may_have_frames();
        let (batch, quantum) = core.batches(self.fetches_at_once(), QUANTUM);
        while delivered < DELIVERIES {
            if core.is_busy(now) {
                break;
            }
            if fetched < FETCHES && !empty && self.inward.may_fetch(core, now) {
                let count = self.fetch(core, batch, now);
                (fetched, empty) = (fetched + count, count < batch);
                let after = clock(Part::Fetch);
                self.inward.drain.fetched(core.fetched(count, after.since(now)));
                now = after;
            } else if let Some(station) = self.inward.ingress.next(now) {
                if self.runs_program(station) {
                    let (count, after) = self.take_programs_turn(core, station, now, clock);
                    (delivered, programs) = (delivered + count, programs + after.since(now));
                    now = after;
                    if programs >= PROGRAMS {
                        break;
                    }
                    continue;
                }
                let count = self.deliver_some(station, quantum, now);
                delivered += count;
                if let Some(lane) = station.checked_sub(COMMON + 1) {
                    self.note_moved(lane as usize);
                }
                let after = clock(Part::Deliver);
                self.note_delays(station, after);
                self.inward.processed(station, core.delivered(count, after.since(now)), after);
                self.part_took(after.since(now), Charged::Yes, after);
                now = after;
            } else {
                core.idle();
                break;
            }
        }
        fetched + delivered
    }

    /// Whether a station's program is to run, rather than frames be delivered to it: it runs once it has a batch, or all that there is.
    fn runs_program(&self, station: u32) -> bool {
        self.inward.ingress.has_work(station) && {
            let lane = self.tenants.lanes.get((station - 1) as usize).and_then(Option::as_ref);
            let hosted = lane.and_then(|lane| lane.program.as_ref());
            hosted.is_none_or(|hosted| hosted.is_full()) || !self.inward.may_take(station)
        }
    }

    /// Runs a station's program, and charges it for the time.
    fn take_programs_turn(
        &mut self,
        core: &impl Core,
        station: u32,
        now: Nanos,
        clock: &impl Fn(Part) -> Nanos,
    ) -> (usize, Nanos) {
        let lane = station - 1;
        let before = self.program_now(lane);
        self.inward.look_at_clock(core, now);
        let count = self.run_program(lane, now);
        self.note_moved(lane as usize);
        let after = clock(Part::Deliver);
        let took = after.since(now);
        let hosted = self.tenants.lane(lane).and_then(|lane| lane.program.as_deref_mut());
        // A call on a core of its own is measured there.
        let hosted = hosted.filter(|hosted| hosted.is_here());
        let is_here = hosted.is_some();
        hosted.into_iter().for_each(|hosted| hosted.took(count, took));
        self.inward.processed(station, took, after);
        let seen = self.program_now(lane);
        let calls = (seen.calls - before.calls).max(1);
        let is_too_long = |span: Span| span >= LONGEST_CALL.times(calls);
        // One that was ended is counted already.
        if is_here
            && is_too_long(took)
            && seen.overruns == before.overruns
            && is_too_long(self.inward.used_since(core, now))
        {
            self.note_long_call(lane, after);
        }
        // What a program takes is no sign of memory that keeps the thread waiting.
        self.copying.part += 1;
        (count, after)
    }

    /// What a lane's program has done so far.
    fn program_now(&mut self, lane: u32) -> ProgramNow {
        let hosted = self.tenants.lane(lane).and_then(|lane| lane.program.as_ref());
        hosted.map(|hosted| hosted.now).unwrap_or_default()
    }

    /// Most frames that are fetched before others that wait may be delivered.
    fn fetches_at_once(&self) -> usize {
        if self.fleet.is_some() { BATCH } else { FETCH }
    }

    fn uplink_may_have_frames(&self) -> bool {
        self.uplink.ready || self.uplink.port.as_ref().is_some_and(Port::must_be_asked)
    }

    /// Looks at each frame from now on, as if its flow were not known. Frames fare the same, and take longer.
    pub fn look_at_each_frame(&mut self) {
        self.count_known();
        self.inward.knows = false;
        self.inward.known.clear();
        self.inward.forget_flows();
    }
}
