//! Clients' requests: flow queues, and rules that say which packets go to which flow queue.
//!
//! Why: the policy is the daemon's; a client that remembers the daemon's answers asks once for each flow.
//! From: SENIC §5.1: on a miss the guest asks the hypervisor, which answers, pushes rules, and ends those that no longer
//! hold.
//! Not here: the cache (`plimsoll-vnic`), the messages (`ports`), and samples (`verify`).
//! Invariant: packets that one rule takes have one place in the policy: a rule looks at all that the policy looks at, or
//! the flow queue behind it is classified packet by packet. A turn answers up to eight messages of a client, a second 16,000
//! after the first 1,024; the others wait in its socket.

use plimsoll_nic::QueueId;
use plimsoll_policy::{Fields, Match, Metadata, Placement, Prefix, Program, TenantId};
use plimsoll_ports::{Port, VnicAnswer, VnicRequest};
use plimsoll_units::Nanos;
use plimsoll_vnic::{FlowSpec, OpenRefusal, Rule, Scope};

use super::Dataplane;
use super::verify::Trust;

/// A flow queue that a client asked for.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) queue: QueueId,
    /// The fields that it was asked for, for a later policy.
    pub(crate) fields: Fields,
    /// The place of these fields in the policy in force.
    pub(crate) placement: Placement,
    /// The rule that the client was sent for it, if any.
    pub(crate) rule: Option<(Scope, FlowSpec)>,
    /// Whether the client still has it; otherwise it is closed once it is empty.
    pub(crate) live: bool,
}

/// Messages handled in a turn, those that the port refuses by itself included.
const REQUESTS: usize = 8;

impl Dataplane {
    /// Answers a client's requests, unless it has sent too many lately.
    pub(super) fn answer_requests(&mut self, index: usize, now: Nanos) {
        for _ in 0..REQUESTS {
            let Some(lane) = &mut self.tenants.lanes[index] else { return };
            if lane.held_until.is_some() || lane.asks_at(1, now) > now {
                return self.hold_requests(index, now);
            }
            let Some(request) = lane.port.as_mut().and_then(Port::request) else { return };
            lane.asked(now);
            let answer = match request {
                VnicRequest::Open(spec) => Some(VnicAnswer::Opened(self.open_flow(index, &spec))),
                VnicRequest::Ask(spec) => self.rule_for(index, &spec),
                VnicRequest::Close(target) => {
                    self.close_flow(index, QueueId(target));
                    Some(VnicAnswer::Closed)
                }
                VnicRequest::Refused => None,
            };
            if let Some(answer) = answer
                && let Some(port) = self.port_of(index)
            {
                port.answer(answer);
            }
        }
    }

    /// Leaves the client's messages in its socket until a turn's worth of them may be answered.
    fn hold_requests(&mut self, index: usize, now: Nanos) {
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        if lane.held_until.is_some() {
            return;
        }
        let until = lane.asks_at(REQUESTS as u64, now);
        lane.held_until = Some(until);
        if let Some(port) = &mut lane.port {
            port.hold_requests(true);
        }
        self.note_release(until);
    }

    /// Reads clients' held messages again, once it is time.
    pub(super) fn release_requests(&mut self, index: usize, now: Nanos) {
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        let Some(until) = lane.held_until else { return };
        if until > now {
            return self.note_release(until);
        }
        (lane.held_until, lane.ready) = (None, true);
        if let Some(port) = &mut lane.port {
            port.hold_requests(false);
        }
    }

    fn note_release(&mut self, at: Nanos) {
        self.due.release_at = Some(self.due.release_at.map_or(at, |noted| noted.min(at)));
    }

    fn port_of(&mut self, index: usize) -> Option<&mut Port> {
        self.tenants.lanes[index].as_mut()?.port.as_mut()
    }

    /// Classifies the flow that the client describes, and opens a flow queue for it.
    fn open_flow(&mut self, index: usize, spec: &FlowSpec) -> Result<u32, OpenRefusal> {
        if self.tenants.lanes[index].as_ref().is_some_and(|lane| lane.trust == Trust::Forced) {
            return Err(OpenRefusal::Forced);
        }
        let QueueId(queue) = self.open_place(index, spec, None).ok_or(OpenRefusal::NoQueue)?;
        Ok(queue)
    }

    /// Answers with a rule for a flow: a flow queue of its own while the client has many left, then one for all flows
    /// that the policy does not tell apart, and finally queue 0.
    fn rule_for(&mut self, index: usize, spec: &FlowSpec) -> Option<VnicAnswer> {
        let generation = u32::from(self.policy.generation);
        let lane = self.tenants.lanes[index].as_mut()?;
        let wide = *lane.scope.get_or_insert_with(|| scope_of(&self.policy.program, lane.tenant));
        let forced = lane.trust == Trust::Forced;
        let scope = match lane.port.as_ref()?.queues_left().many {
            _ if forced => Scope::NOTHING,
            true => Scope::EXACT,
            false => wide,
        };
        let flow = scope.of(spec);
        let queue = if forced { None } else { self.queue_of_rule(index, spec, scope, flow) };
        let rule = Rule { flow, scope, queue: 0, generation, asked: true };
        Some(VnicAnswer::Rule(rule, queue.map(|QueueId(queue)| queue)))
    }

    /// The flow queue of a rule: an existing one, or a new one.
    fn queue_of_rule(
        &mut self,
        index: usize,
        spec: &FlowSpec,
        scope: Scope,
        flow: FlowSpec,
    ) -> Option<QueueId> {
        let lane = self.tenants.lanes[index].as_ref()?;
        let known = lane.opened.iter().find(|opened| opened.live && opened.rule == Some((scope, flow)));
        match known {
            Some(known) => Some(known.queue),
            None if lane.port.as_ref()?.queues_left().any => {
                self.open_place(index, spec, Some((scope, flow)))
            }
            None => None,
        }
    }

    /// Opens a flow queue of the engine's for these fields, if the lane may have another.
    fn open_place(
        &mut self,
        index: usize,
        spec: &FlowSpec,
        rule: Option<(Scope, FlowSpec)>,
    ) -> Option<QueueId> {
        let lane = self.tenants.lanes[index].as_mut()?;
        let used = lane.flows.len() as usize + lane.opened.len();
        if used >= lane.quota.flows as usize {
            return None;
        }
        let fields = fields_of_spec(spec, lane.tenant);
        let placement = self.policy.classifier.classify(&self.policy.program, &fields);
        let queue = self.scheduler.nic.open_queue(&placement).ok()?;
        lane.opened.push(Opened { queue, fields, placement, rule, live: true });
        Some(queue)
    }

    fn close_flow(&mut self, index: usize, queue: QueueId) {
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        for opened in lane.opened.iter_mut().filter(|opened| opened.queue == queue) {
            opened.live = false;
        }
        // An empty queue is closed at once, others when their last packet has left.
        let nic = &mut self.scheduler.nic;
        lane.opened.retain(|opened| opened.live || !nic.close_queue(opened.queue));
        lane.closing = true;
    }

    /// Has each packet of the client classified by the daemon from now on.
    pub(super) fn force(&mut self, index: usize) {
        let generation = u32::from(self.policy.generation);
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        lane.opened.iter_mut().for_each(|opened| opened.live = false);
        lane.closing = true;
        lane.forget_targets(generation);
        if let Some(port) = lane.vnic() {
            port.classify_all();
        }
    }

    /// After a reload, tells clients which policy is in force, and sends the rules that still hold again. Packets of a
    /// flow queue whose rule covers flows that the new policy places differently are classified one by one until the
    /// client asks again.
    pub(super) fn renew_rules(&mut self) {
        let generation = u32::from(self.policy.generation);
        for lane in self.tenants.all() {
            let scope = scope_of(&self.policy.program, lane.tenant);
            (lane.scope, lane.looked_at, lane.trust) = (Some(scope), None, Trust::default());
            lane.conduct.touched = self.copying.part;
            lane.forget_targets(generation);
            let Some(Port::Vnic(port)) = &mut lane.port else { continue };
            port.set_generation(generation);
            for opened in lane.opened.iter_mut().filter(|opened| opened.live) {
                let Some((rule, flow)) = opened.rule else { continue };
                let QueueId(target) = opened.queue;
                if rule.covers(&scope) {
                    let queue = port.queue_of(target).unwrap_or(0);
                    port.push_rule(&Rule { flow, scope: rule, queue, generation, asked: false });
                } else {
                    port.classify_target(target);
                    (opened.live, lane.closing) = (false, true);
                }
            }
            port.tell_news();
        }
    }
}

/// The headers that the policy looks at to place a tenant's packets, which a rule must look at as well.
fn scope_of(program: &Program, tenant: Option<TenantId>) -> Scope {
    let rules = program.rules.iter().map(|rule| &rule.matches);
    let limits = program.limits.iter().filter_map(|limit| match &limit.scope {
        plimsoll_policy::Scope::Match { matches, .. } => Some(matches),
        plimsoll_policy::Scope::Subtree(_) | plimsoll_policy::Scope::Peer(_) => None,
    });
    let concerned = rules.chain(limits).filter(|matches| {
        matches.tenant.is_empty() || tenant.is_some_and(|tenant| matches.tenant.contains(&tenant))
    });
    concerned.fold(Scope::NOTHING, widened)
}

fn widened(scope: Scope, matches: &Match) -> Scope {
    Scope {
        src: longest(scope.src, &matches.src),
        dst: longest(scope.dst, &matches.dst),
        protocol: scope.protocol || !matches.protocol.is_empty(),
        src_port: scope.src_port || !matches.src_port.is_empty(),
        dst_port: scope.dst_port || !matches.dst_port.is_empty(),
        dscp: scope.dscp || !matches.dscp.is_empty(),
        vlan: scope.vlan || !matches.vlan.is_empty(),
    }
}

/// The most leading bits that any of them looks at, of IPv4 and of IPv6.
fn longest([four, six]: [u8; 2], prefixes: &[Prefix]) -> [u8; 2] {
    prefixes.iter().fold([four, six], |[four, six], prefix| {
        if prefix.addr.is_ipv4() { [four.max(prefix.len), six] } else { [four, six.max(prefix.len)] }
    })
}

fn fields_of_spec(spec: &FlowSpec, tenant: Option<TenantId>) -> Fields {
    let FlowSpec { addresses, protocol, ports, dscp, vlan } = *spec;
    Fields { tenant, addresses, protocol, ports, dscp, vlan, metadata: Metadata::default() }
}
