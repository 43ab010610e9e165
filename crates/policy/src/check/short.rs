//! `flows: fq`: how long the queue of a flow may be, where the policy does not say.
//!
//! Why: what is a short queue depends on the class's rate, and on what its tenant is promised.
//! From: RFC 8289 §3.2 (a target of 5 ms, and of one large packet's time at least; an interval of the longest round trip), and
//! RFC 8290 §5.2.
//! Not here: CoDel itself (`plimsoll_queues::codel`).
//! Invariant: every class with `flows: fq` has a target and a longer interval, neither of them zero.

use plimsoll_units::{BitRate, Span};

use crate::bounds::bounds;
use crate::program::{Codel, FlowOrder, NodeId, NodeKind, Program};
use crate::read::syntax::StatedCodel;

/// What is stated; zero stands for what is not until [`complete`].
pub(super) fn stated(codel: StatedCodel) -> Codel {
    let or_zero = |time: Option<Span>| time.unwrap_or(Span::ZERO);
    Codel { target: or_zero(codel.target), interval: or_zero(codel.interval) }
}

/// Fills in the times that are not stated.
pub(super) fn complete(program: &mut Program) {
    let open = |codel: &Codel| codel.target == Span::ZERO || codel.interval == Span::ZERO;
    if !program.nodes.iter().any(|node| codel_of(node.kind).is_some_and(|codel| open(&codel))) {
        return;
    }
    for bound in bounds(program) {
        let node = program.node(bound.class);
        let Some(stated) = codel_of(node.kind).filter(open) else { continue };
        let rate = bound.guaranteed.unwrap_or(program.link);
        let codel = times(stated, slowest_frames(program, rate), each_way(program, bound.class));
        program.nodes[bound.class.0 as usize].kind = NodeKind::Class(FlowOrder::Fq(codel));
    }
}

fn codel_of(kind: NodeKind) -> Option<Codel> {
    if let NodeKind::Class(FlowOrder::Fq(codel)) = kind { Some(codel) } else { None }
}

/// The times of a class whose one and a half largest frames take `frames`, and whose tenant's packets may take `each_way`.
fn times(stated: Codel, frames: Span, each_way: Option<Span>) -> Codel {
    let part = |whole: Span, parts: u64| Span::ns((whole.as_u64() / parts).max(1));
    let target = if stated.target > Span::ZERO {
        stated.target
    } else {
        let promised = each_way.map_or(TARGET, |each_way| part(each_way, 3).min(TARGET));
        let asked = if stated.interval > Span::ZERO { part(stated.interval, RATIO) } else { promised };
        // A longer target than the interval would mean nothing.
        let most = if stated.interval > Span::ZERO { part(stated.interval, 2) } else { frames };
        asked.min(promised).max(frames.min(most))
    };
    let interval = match stated.interval {
        Span::ZERO if target <= TARGET => target.times(RATIO),
        Span::ZERO => TARGET.times(RATIO) + (target - TARGET),
        interval => interval,
    };
    Codel { target, interval }
}

/// The time of one and a half of the largest frames at a rate, rounded up: below it a queue of one frame would be too long.
fn slowest_frames(program: &Program, rate: BitRate) -> Span {
    let frame = program.max_frame + program.overhead;
    Span::ns(rate.wire_time(frame.times(3)).as_u64().div_ceil(2))
}

/// Half of the widest delay target of the class's tenant.
fn each_way(program: &Program, class: NodeId) -> Option<Span> {
    let of_subtree = program.path(class).find_map(|id| program.node(id).tenant);
    let tenant = of_subtree.or(program.node(class).sender)?;
    program.tenants[tenant.0 as usize].slo.each_way
}

const TARGET: Span = Codel::DEFAULT.target;
/// Interval by target: RFC 8289 §4.4 asks for a target of 5 to 10 % of the interval.
const RATIO: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// What a policy with this tenant and uplink gives: target and interval.
    fn said(uplink: &str, shop: &str) -> (Span, Span) {
        let text = format!(
            "{{uplink: {{port: memory, rate: {uplink}}}, tenants: {{shop: {{port: memory, {shop}}}, batch: {{port: memory, weight: 9}}}}}}"
        );
        let checked =
            crate::check_str("p.yaml", &text).unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        let shop = checked.program.find("shop").expect("a tenant is a class");
        let codel = codel_of(checked.program.node(shop).kind).expect("flows: fq");
        (codel.target, codel.interval)
    }

    #[test]
    fn the_times_follow_from_the_rate_and_the_delay_target() {
        assert_eq!(said("10Gbps", "flows: fq"), (Span::millis(5), Span::millis(100)));
        // A tenth of 10 Mb/s: one and a half times 1,518 B take 18.216 ms.
        let slow = said("10Mbps", "flows: fq");
        assert_eq!(slow, (Span::micros(18_216), Span::micros(113_216)));
        // 300 us both ways, 150 us each way.
        let promised = said("10Gbps", "flows: fq, min: 1Gbps, delay: {p99: 300us}");
        assert_eq!(promised, (Span::micros(50), Span::millis(1)));
    }

    #[test]
    fn what_is_stated_holds() {
        let both = said("10Mbps", "flows: {fq: {target: 1ms, interval: 7ms}}");
        assert_eq!(both, (Span::millis(1), Span::millis(7)));
        assert_eq!(said("10Gbps", "flows: {fq: {target: 2ms}}"), (Span::millis(2), Span::millis(40)));
        assert_eq!(said("10Gbps", "flows: {fq: {interval: 20ms}}"), (Span::millis(1), Span::millis(20)));
        assert_eq!(said("10Gbps", "flows: {fq: {}}"), (Span::millis(5), Span::millis(100)));
        // An interval that is too short for the rate still leaves a shorter target.
        assert_eq!(said("10Mbps", "flows: {fq: {interval: 20ms}}"), (Span::millis(10), Span::millis(20)));
    }
}
