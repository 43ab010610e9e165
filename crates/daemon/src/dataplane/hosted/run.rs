//! Runs programs, and does what they have decided.
//!
//! Not here: where packets wait for them (`hosted`).
//! Invariant: a call's packets leave it with one verdict each, or are all lost for a counted reason.

use plimsoll_offload::{Decided, Fault, Packet, Place as At, Request, Verdict, Way};
use plimsoll_policy::Fails;
use plimsoll_ports::Received;
use plimsoll_units::Nanos;

use super::super::Dataplane;
use super::super::depart::Handed;
use super::super::drops::Loss;
use super::super::emit::Emitted;
use super::super::posted::{Copied, Origin};
use super::own_core::lost_by;
use super::place::Place;
use super::{Hosted, RESERVED, TENANT, in_time};

impl Hosted {
    /// What it has decided about this packet of the last batch, on the engine's thread.
    fn settled(&self, number: usize) -> Option<(Decided, Option<Request>)> {
        let Place::Here(program) = &self.program else { return None };
        let decided = *program.ran().packets.get(number)?;
        let request = match decided.verdict {
            Verdict::Unit(call) => program.request(&decided, call),
            _ => None,
        };
        Some((decided, request))
    }
}

impl Dataplane {
    /// Runs a tenant's program with packets that wait for it, once for each direction. Answers how many they were.
    pub(in super::super) fn run_program(&mut self, index: u32, now: Nanos) -> usize {
        let Some(mut hosted) = self.tenants.lane(index).and_then(|lane| lane.program.take()) else {
            self.inward.set_work(index, false);
            return 0;
        };
        let mut count = self.collect_done(&mut hosted, index, now);
        if hosted.may_call() && hosted.ticks_at().is_some_and(|at| at <= now) {
            (hosted.ticked, count) = (now, count + 1);
            if let Some(fault) = hosted.program.tick(hosted.epochs.as_ref(), now) {
                self.note_fault(&mut hosted, index, &fault, now);
            }
        }
        let most = hosted.most();
        if !hosted.now.halted && hosted.may_call() {
            let incoming = hosted.incoming.len().min(most);
            hosted.batch.extend(hosted.incoming.drain(..incoming));
            count += self.run_batch(&mut hosted, Way::Ingress, index, now);
        }
        if let Some(lane) = self.tenants.lane(index).filter(|_| !hosted.now.halted && hosted.may_call()) {
            // Each packet that leaves needs a descriptor; one that adds more of them than there are loses those.
            let amplification = hosted.program.limits().amplification.max(1);
            let [_, away] = hosted.program.inside().map(|packets| packets as u32 * amplification);
            let room = lane.tenant.map_or(0, |tenant| self.scheduler.nic.tenant_room(tenant));
            let room = room.saturating_sub(away);
            let fit = (room / amplification).max(room.min(1));
            hosted.fill(lane, most.min(fit as usize));
            count += self.run_batch(&mut hosted, Way::Egress, index, now);
        }
        // The program that is to follow gets what waits.
        if hosted.now.halted && hosted.leaving.is_none() && hosted.has_waiting() {
            match hosted.fails {
                // What its core still has goes first.
                Fails::Open if hosted.program.is_away() => {}
                Fails::Open => self.pass_waiting(&mut hosted, index as usize, now),
                Fails::Closed => self.lose_waiting(&mut hosted, index),
            }
        }
        // Without a descriptor, or room at its core, it waits until there is some (`tend_programs`).
        let may_go_on = hosted.has_waiting() && hosted.may_call() || hosted.program.has_done();
        let has_work = count > 0 && may_go_on;
        if let Some(lane) = self.tenants.lane(index) {
            lane.program = Some(hosted);
        }
        self.inward.set_work(index, has_work);
        self.scheduler.ring(now);
        count
    }

    /// Runs a program with its batch, which is empty afterwards.
    fn run_batch(&mut self, hosted: &mut Hosted, way: Way, index: u32, now: Nanos) -> usize {
        let count = hosted.batch.len();
        if count == 0 {
            return 0;
        }
        let Hosted { program, batch, epochs, now: seen, .. } = &mut *hosted;
        (seen.calls, seen.packets) = (seen.calls + 1, seen.packets + count as u64);
        let answered = match program {
            Place::Here(program) => {
                in_time(epochs.as_ref(), || program.run(way, batch, now).map(|ran| ran.malformed))
            }
            Place::Core(core) => {
                core.run(way, batch, now);
                batch.clear();
                return count;
            }
        };
        batch.clear();
        match answered {
            Ok(malformed) => {
                if let Some(lane) = self.tenants.lane(index) {
                    lane.tally.lost_many(Loss::ProgramMalformed, malformed.into());
                }
                let mut number = 0;
                while let Some(settled) = hosted.settled(number) {
                    self.act(hosted, settled, (way, index), now);
                    number += 1;
                }
            }
            Err(fault) => {
                if let Some(lane) = self.tenants.lane(index) {
                    lane.tally.lost_many(lost_by(&fault), count as u64);
                }
                self.note_fault(hosted, index, &fault, now);
            }
        }
        count
    }

    /// Does what a program has decided about one packet, with its request where that is for a coprocessor.
    pub(super) fn act(
        &mut self,
        hosted: &mut Hosted,
        (decided, request): (Decided, Option<Request>),
        (way, index): (Way, u32),
        now: Nanos,
    ) {
        hosted.now.added += u64::from(decided.added && decided.verdict != Verdict::Drop);
        let own = match way {
            Way::Ingress => TENANT,
            Way::Egress => Packet::NETWORK,
        };
        let to = match decided.verdict {
            Verdict::Pass => own,
            Verdict::Redirect(to) => to,
            Verdict::Unit(_) => return self.hand_to_unit(hosted, (&decided, request), (way, index)),
            Verdict::Drop => {
                if let Some(lane) = self.tenants.lane(index).filter(|_| !decided.added) {
                    lane.tally.lost(Loss::ProgramDropped);
                }
                return;
            }
        };
        hosted.now.redirected += u64::from(to != own);
        let bytes = hosted.program.packet(&decided);
        match to {
            Packet::NETWORK => self.send_of_program(index as usize, bytes, now),
            TENANT => self.give_to_tenant(index, bytes),
            _ => {
                if let Some(lane) = self.tenants.lane(index) {
                    lane.tally.lost(Loss::ProgramNoPort);
                }
            }
        }
        hosted.program.give(decided.slot);
    }

    /// Hands a packet to a coprocessor, from which it comes back to the program.
    fn hand_to_unit(
        &mut self,
        hosted: &mut Hosted,
        (decided, request): (&Decided, Option<Request>),
        (way, index): (Way, u32),
    ) {
        let asked = match request {
            Some(request) => self.ask_unit(index, &hosted.tenant, way, request),
            None => Err(Loss::ProgramNoUnit),
        };
        match asked {
            Ok(()) => hosted.now.to_units += 1,
            Err(why) => self.tenants.lane(index).into_iter().for_each(|lane| lane.tally.lost(why)),
        }
        hosted.program.give(decided.slot);
    }

    /// Sends a packet as its tenant's. It is copied: while it waits for its turn, the program could change what was checked.
    pub(in super::super) fn send_of_program(&mut self, index: usize, bytes: &[u8], now: Nanos) {
        let Some(lane) = self.tenants.lanes[index].as_deref_mut() else { return };
        let has_room = lane.tenant.is_some_and(|tenant| self.scheduler.nic.tenant_room(tenant) > 0);
        let buffer = if has_room { lane.pool.take(bytes.len()) } else { None };
        let Some(buffer) = buffer else { return lane.tally.lost(Loss::ProgramNoRoom) };
        lane.pool.bytes_mut(buffer)[..bytes.len()].copy_from_slice(bytes);
        let received = Received { len: bytes.len(), ..Received::default() };
        self.admit(index, buffer, &received, &Origin::default(), now);
    }

    /// Hands a packet to the tenant.
    pub(in super::super) fn give_to_tenant(&mut self, index: u32, bytes: &[u8]) {
        let Some(lane) = self.tenants.lane(index) else { return };
        let Some(port) = &mut lane.port else { return lane.tally.lost(Loss::ReceiverGone) };
        let sending = port.send(bytes, None);
        let handed = self.after_send(index, sending.map(Emitted::from));
        if let (Handed::Lost(why), Some(lane)) = (handed, self.tenants.lane(index)) {
            lane.tally.lost(why);
        }
    }

    /// Notes that a call which has returned took longer than one may.
    pub(in super::super) fn note_long_call(&mut self, index: u32, now: Nanos) {
        let Some(mut hosted) = self.tenants.lane(index).and_then(|lane| lane.program.take()) else { return };
        self.note_fault(&mut hosted, index, &Fault::OverBudget(At::default()), now);
        if let Some(lane) = self.tenants.lane(index) {
            lane.program = Some(hosted);
        }
    }

    /// Notes that a call has failed; the first time, and where the program is halted for it, with a line in the log.
    pub(super) fn note_fault(&mut self, hosted: &mut Hosted, index: u32, fault: &Fault, now: Nanos) {
        let Some(name) = self.tenants.lane(index).map(|lane| lane.name.clone()) else { return };
        let first = hosted.now.faults + hosted.now.overruns == 0;
        let mut halted = false;
        match fault {
            Fault::OverBudget(_) => halted = hosted.overrun(now),
            Fault::Trap { .. } | Fault::Count { .. } => hosted.now.faults += 1,
        }
        let told = &mut self.backpressure.told;
        if first {
            told.push(format!("tenant {name}: its program has failed: {fault}"));
        }
        if halted {
            let then = match hosted.fails {
                Fails::Closed => "all that it would see are lost",
                Fails::Open => "they pass without it",
            };
            told.push(format!(
                "tenant {name}: its program is HALTED, as {} calls took too long ({fault}); its packets: {then}, until a reload changes it",
                hosted.now.overruns
            ));
        }
    }

    /// Lets packets pass that waited for a program which no longer runs.
    pub(super) fn pass_waiting(&mut self, hosted: &mut Hosted, index: usize, now: Nanos) {
        while let Some(packet) = hosted.incoming.pop_front() {
            self.give_to_tenant(index as u32, &hosted.program.bytes(packet.slot)[..packet.len as usize]);
            hosted.program.give(packet.slot);
        }
        while let Some(packet) = hosted.returned.pop_front() {
            self.send_of_program(index, &hosted.program.bytes(packet.slot)[..packet.len as usize], now);
            hosted.program.give(packet.slot);
        }
        while let Some(Copied { buffer, received, origin, .. }) = hosted.outgoing.pop_front() {
            let (frames, payload) = core::mem::take(&mut hosted.begun);
            let Some(lane) = self.tenants.lane(index as u32) else { return };
            if frames > 0 || payload > 0 {
                // Its first part has passed the program.
                lane.tally.lost_many(Loss::ProgramHalted, u64::from(origin.frames()) - u64::from(frames));
                lane.give_held(buffer, plimsoll_vnic::Status::Sent);
                continue;
            }
            self.admit(index, buffer, &received, &origin, now);
        }
    }

    /// Drops packets that waited for a program which was halted.
    fn lose_waiting(&mut self, hosted: &mut Hosted, index: u32) {
        let Some(lane) = self.tenants.lane(index) else { return };
        lane.tally.lost_many(Loss::ProgramHalted, (hosted.incoming.len() + hosted.returned.len()) as u64);
        for packet in hosted.incoming.drain(..).chain(hosted.returned.drain(..)) {
            hosted.program.give(packet.slot);
        }
        lane.lose_outgoing(hosted, Loss::ProgramHalted);
    }
}

const _: () =
    assert!(RESERVED as usize >= plimsoll_offload::BATCH, "a batch of what its tenant sends has buffers");
