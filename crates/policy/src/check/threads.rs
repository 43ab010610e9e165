//! Whether several engine threads can keep a policy.
//!
//! Not here: which parts of a policy they do not keep (`crate::threads`).
//! Invariant: a policy for one thread is never judged.

use plimsoll_document::Mark;

use crate::config::{EngineConfig, Port};
use crate::law::{Law, Problem, Problems};
use crate::program::Program;
use crate::read::syntax::{TenantEntry, UplinkEntry};

/// What a policy states beside its program.
pub(super) struct Stated<'a> {
    pub(super) engine: &'a EngineConfig,
    pub(super) uplink: Option<&'a UplinkEntry>,
    pub(super) tenants: &'a [TenantEntry],
    pub(super) overlay: bool,
    pub(super) backpressure: bool,
}

/// Refuses `threads` where the policy states something that they do not keep.
pub(super) fn judge(program: &Program, at: Mark, stated: &Stated<'_>, problems: &mut Problems) {
    let order = program.unsupported_by_threads().map(|why| {
        let help = "write `threads: 1`; or use `priority`, `wfq` or `drr` above tenants, and limits of packets for one tenant only";
        (why.to_string(), help.to_owned())
    });
    let Some((why, help)) = order.or_else(|| stated.unsupported()) else { return };
    let message = format!("`threads` is {}, but {why}", stated.engine.threads);
    problems.push(
        Problem::error(Law::BadValue, at, message).label("several threads do not keep that").help(help),
    );
}

impl Stated<'_> {
    /// The first thing beside the program that works with one thread only so far, and what to do.
    fn unsupported(&self) -> Option<(String, String)> {
        let uplink = self.uplink.and_then(|uplink| uplink.port.as_ref());
        if let Some(port) = uplink.filter(|port| !has_queues(&port.value)) {
            let why = format!("the uplink {} has one queue that Plimsoll uses", port.value);
            let help = "write `threads: 1`, or open the uplink by `port: {af_packet: NAME}` or `port: {af_xdp: NAME}`, which have a queue for each thread";
            return Some((why, help.to_owned()));
        }
        let mediated = self.tenants.iter().find(|tenant| tenant.ecn.mediate().is_some());
        let alone = if self.overlay {
            "tenants of other hosts (`overlay`)"
        } else if self.backpressure {
            "`backpressure`"
        } else if self.uplink.is_some_and(|uplink| uplink.standby.is_some()) {
            "a `standby` of the uplink"
        } else if mediated.is_some() {
            "`ecn: mediated`"
        } else if self.engine.experiment.is_some() {
            "`experiment`"
        } else {
            return None;
        };
        let help = format!(
            "write `threads: 1`, or leave {} out",
            alone.split(" (").last().unwrap_or(alone).trim_end_matches(')')
        );
        Some((format!("{alone} works with one thread only so far"), help))
    }
}

/// Whether a port of the uplink has a queue for each thread.
fn has_queues(port: &Port) -> bool {
    matches!(port, Port::AfPacket(_) | Port::AfXdp(_) | Port::Memory)
}
