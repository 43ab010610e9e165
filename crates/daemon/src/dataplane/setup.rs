//! Derives from a policy the parts that an engine is made from.
//!
//! Why: the start, a reload, tests and benches must derive the same sizes from the same policy.
//! From: `docs/policy.md`.
//! Not here: opening ports (`open`).
//! Invariant: what a reload changes is derived by the functions that the start used.

use plimsoll_nic::Config;
use plimsoll_policy::{self as policy, Checked, Ecn, Grain, Program};
use plimsoll_ports::Port;
use plimsoll_units::{Bytes, Span};

use plimsoll_wire::overlay::Vni;

use super::crossing::Seat;
use super::fleet::{FleetMap, cuts_segments};
use super::lane::{LaneSpec, Quota};

/// Bytes that one pull may take: what the link carries in this time, so that no packet waits longer for a large segment.
const PULL: Span = Span::micros(50);

/// How far the link's pace may lag behind and be made up while packets wait: a thread that the kernel kept waiting for
/// a core loses no throughput by it. A scheduler's slice on a busy machine is 3 ms; with a tenth of this the uplink got
/// 80 % of its rate there. A link that had nothing to send makes up nothing.
const CATCH_UP: Span = Span::millis(5);

/// The fleet of this policy, if it states one; its limits for tenants elsewhere are added to the program.
#[must_use]
pub fn fleet_map(checked: &Checked, program: &mut Program) -> Option<FleetMap> {
    let overlay = checked.config.overlay.as_ref()?;
    Some(FleetMap::new(overlay, checked.config.uplink.mtu, program))
}

/// A tenant's network; number zero without an overlay.
fn network_of(checked: &Checked, tenant: &str) -> Vni {
    let network = checked.config.overlay.as_ref().and_then(|overlay| overlay.network_of(tenant));
    network.and_then(Vni::new).unwrap_or_default()
}

/// The parts that the lane of a tenant is made from. Panics when the policy has no such tenant.
#[must_use]
pub fn lane_spec(checked: &Checked, name: &str, port: Option<Port>) -> LaneSpec {
    let tenants = (0..).map(plimsoll_policy::TenantId).zip(&checked.program.tenants);
    let (tenant, stated) =
        tenants.into_iter().find(|(_, tenant)| tenant.name == name).expect("the policy's own tenant");
    let written = checked.config.tenants.iter().find(|tenant| tenant.name == name);
    LaneSpec {
        name: name.to_owned(),
        tenant,
        seat: Seat { number: tenant.0, elsewhere: None },
        network: network_of(checked, name),
        port,
        descriptors: stated.descriptors,
        flows: Quota::of(checked.config.engine.queues, checked.program.tenants.len()).flows,
        addresses: written.map(|tenant| tenant.addresses.clone()).unwrap_or_default(),
        mediate: written.and_then(|tenant| tenant.ecn.mediate()),
        untouched: written.is_some_and(|tenant| tenant.ecn == Ecn::Untouched),
        program: None,
    }
}

/// The tenants with `ecn: untouched`.
pub(super) fn untouched(config: &policy::Config) -> Vec<String> {
    let tenants = config.tenants.iter().filter(|tenant| tenant.ecn == Ecn::Untouched);
    tenants.map(|tenant| tenant.name.clone()).collect()
}

/// Sizes of the NIC engine for this policy and uplink.
#[must_use]
pub fn engine_config(checked: &Checked, uplink: &Port) -> Config {
    let engine = &checked.config.engine;
    Config {
        queues: engine.queues,
        ring: engine.ring,
        descriptors: engine.descriptors,
        pull: pull(&checked.program, cuts_segments(uplink, checked.config.overlay.is_some())),
        catch_up: CATCH_UP,
    }
}

/// Most bytes that one pull takes: those of a wake-up grain where the uplink cuts segments itself, and of 50 µs in any case; at least
/// one frame.
pub(crate) fn pull(program: &Program, segments: bool) -> Bytes {
    let frame = program.max_frame + program.overhead;
    // A segment of 64 KiB is to leave in one piece, with the headers and the overhead of each packet that it is cut into.
    let most = Bytes::new(65_536 + 16_384);
    let span = if segments { Grain::of(program).pull().max(PULL) } else { PULL };
    program.link.bytes_in(span).min(most).max(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_is_a_grain_of_link_but_at_least_fifty_microseconds_and_a_frame() {
        let program = |rate: &str, delay: &str| {
            let text = format!(
                "uplink: {{port: memory, rate: {rate}}}\ntenants:\n  a: {{port: memory{delay}}}\n  b: {{port: memory}}\n"
            );
            plimsoll_policy::check_str("test.yaml", &text).expect("a policy").program
        };
        let (any, fine) = ("", ", delay: {p99: 100us}");
        let frame = program("10Gbps", any).max_frame;
        assert_eq!(pull(&program("10Gbps", fine), true), Bytes::new(62_500));
        assert_eq!(pull(&program("1Gbps", any), true), Bytes::new(62_500));
        assert_eq!(pull(&program("100Gbps", any), true), Bytes::new(81_920));
        assert_eq!(pull(&program("100Mbps", fine), true), frame);
        assert_eq!(pull(&program("100Gbps", any), false), Bytes::new(81_920));
        assert_eq!(pull(&program("1Gbps", any), false), Bytes::new(6_250), "of 50 us, not of a grain");
        assert_eq!(pull(&program("100Mbps", any), false), frame);
        assert_eq!(pull(&program("100Mbps", any), true), Bytes::new(6_250), "of a grain of 1.9 ms");
        assert_eq!(pull(&program("100Mbps, grain: 5ms", any), true), Bytes::new(62_500));
    }
}
