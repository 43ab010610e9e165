//! Any port, served by a thread of its own.
//!
//! Why: a port may have to leave the engine's thread while it is open, whatever its kind.
//! From: [`Port`]'s own methods, under their names.
//! Not here: the thread (`apart`).
//! Invariant: that of [`Served`].

use std::os::fd::RawFd;

use plimsoll_vnic::Status;
use plimsoll_wire::VnetHeader;

use super::Port;
use crate::apart::{Served, Shown};
use crate::contract::Trouble;
use crate::counters::{PairCounters, Sending};
use crate::posted::{Ticket, Took};
use crate::shared_memory::{QueuesLeft, VnicAnswer, VnicRequest};

impl Served for Port {
    fn begin(&mut self) -> Result<(), Trouble> {
        Port::begin(self)
    }

    fn take(&mut self, window: u32) -> Took {
        Port::take(self, window)
    }

    fn copy(&self, into: &mut [u8]) {
        Port::copy(self, into);
    }

    fn complete(&mut self, ticket: Ticket, status: Status) {
        Port::complete(self, ticket, status);
    }

    fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        Port::send(self, frame, vnet)
    }

    fn flush(&mut self) {
        // A port that has gone reports that when it is read.
        let _ = Port::flush(self);
    }

    fn rest(&mut self) -> bool {
        Port::rest(self) && !self.has_more_to_say()
    }

    fn wait_on(&self) -> Option<RawFd> {
        self.fds().receive
    }

    fn show(&mut self) -> Shown {
        Shown {
            name: self.name(),
            mac: self.tenant_mac(),
            level: Some(self.level()),
            capabilities: self.capabilities(),
            depth: self.depth(),
            counters: self.counters(),
            pairs: Vec::new(),
            problem: self.take_problem(),
        }
    }

    fn rings(&self) -> Vec<PairCounters> {
        self.pairs()
    }

    fn request(&mut self) -> Option<(VnicRequest, QueuesLeft)> {
        let request = Port::request(self)?;
        Some((request, Port::queues_left(self)))
    }

    fn answer(&mut self, answer: &VnicAnswer, holds: bool) {
        let Self::Vnic(port) = self else { return };
        port.answer(answer);
        if !holds && let Some(target) = answer.target() {
            port.classify_target(target);
        }
    }

    fn forget_targets(&mut self, generation: u32) {
        let Self::Vnic(port) = self else { return };
        port.set_generation(generation);
        port.classify_all();
    }
}
