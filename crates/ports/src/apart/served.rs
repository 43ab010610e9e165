//! The interface of a port that can be served apart.
//!
//! Why: the thread that serves a port needs less than [`crate::Port`] offers, and tests serve ports of their own.
//! From: [`crate::Port`]'s own methods, under their names.
//! Not here: the thread (`worker`), the engine's side (`apart`).
//! Invariant: [`Served::show`] touches no memory of the tenant, so it never waits for one.

use std::os::fd::RawFd;

use plimsoll_vnic::Status;
use plimsoll_wire::VnetHeader;

use crate::contract::{Capabilities, Level, Trouble};
use crate::counters::{Counters, PairCounters, Sending};
use crate::error::PortError;
use crate::posted::{Ticket, Took};
use crate::shared_memory::{QueuesLeft, VnicAnswer, VnicRequest};

/// A port that can be served apart: one whose frames stay in their sender's memory until they are taken.
pub trait Served: Send + 'static {
    /// Begins a batch of [`Served::take`].
    ///
    /// # Errors
    /// [`Trouble`] when the port carries nothing.
    fn begin(&mut self) -> Result<(), Trouble>;
    /// Takes the next posted frame.
    fn take(&mut self, window: u32) -> Took;
    /// Copies the frame taken last.
    fn copy(&self, into: &mut [u8]);
    /// Completes a frame that was taken.
    fn complete(&mut self, ticket: Ticket, status: Status);
    /// Sends one frame.
    ///
    /// # Errors
    /// [`Trouble`] when the port carries nothing.
    fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble>;
    /// Shows the tenant its completions and new frames.
    fn flush(&mut self);
    /// Asks to be woken for new frames; returns whether the owner may sleep.
    fn rest(&mut self) -> bool;
    /// The file descriptor to wait on.
    fn wait_on(&self) -> Option<RawFd>;
    /// The port's state, except for its rings; touches no memory of the tenant.
    fn show(&mut self) -> Shown;
    /// The counters of the port's rings.
    fn rings(&self) -> Vec<PairCounters> {
        Vec::new()
    }
    /// The client's next request, and whether it has unopened flow queues left; reads at most one message.
    fn request(&mut self) -> Option<(VnicRequest, QueuesLeft)> {
        None
    }
    /// Answers the client's request. When `holds` is false, the target of the answer is out of date, and frames of that
    /// flow queue must be classified.
    fn answer(&mut self, _answer: &VnicAnswer, _holds: bool) {}
    /// From now on, frames of the client's present flow queues must be classified; `generation` numbers the new policy.
    fn forget_targets(&mut self, _generation: u32) {}
}

/// The state of a port that is served apart, as the engine's side sees it.
#[derive(Debug, Default)]
pub struct Shown {
    /// The port's name for operators.
    pub name: String,
    /// The tenant's hardware address, if there is only one.
    pub mac: Option<[u8; 6]>,
    /// The port's backpressure level.
    pub level: Option<Level>,
    /// The offloads and MTU of the port.
    pub capabilities: Capabilities,
    /// Number of descriptors with which the tenant sends.
    pub depth: Option<u32>,
    /// Traffic so far.
    pub counters: Counters,
    /// Counters of each pair of rings.
    pub pairs: Vec<PairCounters>,
    /// Why frames are being lost.
    pub problem: Option<PortError>,
}
