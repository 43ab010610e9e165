//! The tree as text, with what each class is guaranteed.

use std::collections::HashMap;
use std::fmt::Write as _;

use plimsoll_units::{NS_PER_SEC, Span};

use super::addresses::addresses_text;
use super::backpressure::backpressure_text;
use super::offload::programs_text;
use super::words::{order_words, scope_words, short, weighed};
use crate::bounds::{ASSUMPTIONS, Bound, bounds};
use crate::check::Checked;
use crate::check::promises::worst;
use crate::config::{Encapsulation, FleetTenant, IdleMinimum, Overlay, Sealed, Uplink, Via};
use crate::grain::Grain;
use crate::program::{NodeId, Program, Scope};
use crate::slo::{CEILING_BURST, CEILING_SLACK};
use crate::threads::SHARES_WITHIN;

/// The tree, each class's guaranteed rate and worst-case delay, the limits, and what the figures assume.
///
/// ```
/// let policy = "{uplink: {port: memory, rate: 1Gbps}, tenants: {a: {port: memory}, b: {port: memory}}}";
/// let text = plimsoll_policy::tree_text(&plimsoll_policy::check_str("p.yaml", policy).expect("legal"));
/// assert!(text.contains("500Mbps"));
/// ```
#[must_use]
pub fn tree_text(checked: &Checked) -> String {
    let program = &checked.program;
    let mut text = format!(
        "{}: {} classes, {} tenants, {} limits on {} with frames up to {} bytes\n\n",
        checked.sources.files().first().map_or("policy", |file| file.name.as_str()),
        program.nodes.iter().filter(|node| node.children.is_empty()).count(),
        program.tenants.len(),
        program.limits.len(),
        program.link,
        program.max_frame.as_u64(),
    );
    let bounds: HashMap<NodeId, Bound> =
        bounds(program).into_iter().map(|bound| (bound.class, bound)).collect();
    text.push_str(&tree_table(program, NodeId(0), Some(&bounds)));
    if !program.limits.is_empty() {
        text.push('\n');
        text.push_str(&limit_table(program));
    }
    text.push_str(&promise_table(program));
    text.push_str(&ceilings(program));
    text.push_str(&unbounded(&bounds));
    if let Some(overlay) = &checked.config.overlay {
        text.push_str(&overlay_text(overlay, checked.config.tenant_mtu()));
    }
    text.push_str(&backpressure_text(&checked.config));
    text.push_str(&programs_text(&checked.config));
    text.push_str(&addresses_text(&checked.config));
    text.push_str(&standby_text(&checked.config.uplink));
    text.push_str(&threads_text(program, checked.config.engine.threads));
    text.push_str(&grain_text(program, checked.config.engine.threads));
    let _ = write!(text, "\n{ASSUMPTIONS}\n");
    text
}

/// The uplink's two ports, and when they change places; nothing for an uplink with one port.
fn standby_text(uplink: &Uplink) -> String {
    let Uplink { port, standby: Some(standby), hold_off, rate, .. } = uplink else { return String::new() };
    let back = match *hold_off {
        Span::ZERO => "as soon as it has a carrier again".to_owned(),
        hold_off => format!("once it has carried for {hold_off}"),
    };
    format!(
        "\nUplink: {port}; while it has no carrier, the standby {standby} carries all frames at {rate}. {port} takes back \
         {back}\n"
    )
}

/// How exactly several threads share the link; nothing for one thread.
fn threads_text(program: &Program, threads: u32) -> String {
    if threads == 1 {
        return String::new();
    }
    let ((within, off), lease) = (SHARES_WITHIN, program.lease());
    let mut text = format!(
        "\nEngine threads: {threads}, which share the link by leases of {lease}. Within {within} each class gets its share, give or \
         take {}.{} %.",
        off / 10,
        off % 10
    );
    let limits = program.spanning_limits();
    if limits.iter().any(|&limit| matches!(program.limit(limit).scope, Scope::Match { .. })) {
        text.push_str(
            " It may be more where a limit by match and the link hold classes of one thread in turns.",
        );
    }
    for (index, &limit) in limits.iter().enumerate() {
        let name = &program.limit(limit).name;
        let more = program.excess(limit, threads).as_u64();
        let begin = if index == 0 { " More than a limit allows may leave: " } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{begin}`{name}` {more} bytes");
    }
    text.push_str(if limits.is_empty() { "\n" } else { " at most\n" });
    text
}

/// The wake-up grain, and what it costs.
fn grain_text(program: &Program, threads: u32) -> String {
    let Grain { span, because, behind_max, because_behind_max, spins, .. } = Grain::of(program);
    if span == Span::ZERO {
        let does = if spins {
            "spins while packets pass, and takes a core meanwhile"
        } else {
            "wakes up for each packet that is due"
        };
        return format!("\nWake-up grain: none ({because}); the engine's thread {does}\n");
    }
    let often = NS_PER_SEC / span.as_u64();
    // Several threads renew their leases meanwhile.
    let longer = if behind_max > span && threads == 1 {
        format!(
            "; {behind_max} ({because_behind_max}) while every tenant with traffic was held to its `max` in the last second"
        )
    } else {
        String::new()
    };
    format!(
        "\nWake-up grain: {span} ({because}), at most {often} wake-ups a second while packets wait for a rate{longer}\n"
    )
}

/// The overlay: the hosts and their tenants, sealing, and feedback.
fn overlay_text(overlay: &Overlay, mtu: u16) -> String {
    let own = overlay.own();
    let kind = match overlay.kind {
        Encapsulation::Geneve => "Geneve",
        Encapsulation::Vxlan => "VXLAN",
    };
    let mut text = format!(
        "\nOverlay: {kind}, {}; this is host {} at {}. Tenants may send packets of up to {mtu} bytes.\n",
        networks(overlay),
        own.name,
        own.address,
    );
    for host in &overlay.hosts {
        let tenants = host.tenants.iter().map(|tenant| fleet_tenant(overlay, tenant));
        let tenants: Vec<String> = tenants.collect();
        let tenants = if tenants.is_empty() { "no tenants".to_owned() } else { tenants.join(", ") };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {} at {} has {tenants}", host.name, host.address);
    }
    text.push_str(match overlay.sealed {
        Sealed::No => {
            "Frames between hosts are not sealed: anyone with access to the underlay can read them and forge them.\n"
        }
        Sealed::Accept => {
            "Frames to hosts that seal are sealed; unsealed ones are also accepted, and so can be forged: for changing over.\n"
        }
        Sealed::Yes => "Frames between hosts are sealed; unsealed ones are dropped.\n",
    });
    let Some(feedback) = &overlay.feedback else {
        text.push_str(
            "No feedback: senders are not slowed down when a receiver on another host is overloaded.\n",
        );
        return text;
    };
    let way = match (feedback.via, overlay.kind) {
        (Via::Datapath, Encapsulation::Geneve) => "with tenants' frames, or in frames of its own",
        (Via::Datapath, Encapsulation::Vxlan) => "in frames of its own",
        (Via::Channel, _) => "over the hosts' control channels",
    };
    let _ = writeln!(
        text,
        "Receivers tell senders every {} what they may send, {way}. A limit lapses {} after it was last heard; while a \
         host says nothing, each tenant here sends each tenant there {} at most.",
        feedback.epoch, feedback.lapse, feedback.fallback,
    );
    if feedback.ecn {
        text.push_str("  the fabric's marks hold them back, too\n");
    }
    if feedback.idle == IdleMinimum::Lent {
        text.push_str("  the `min` of a tenant that receives nothing is lent to the others\n");
    }
    if let Some(host) = feedback.distributor {
        let _ =
            writeln!(text, "  {} divides what they allow all balancers together", overlay.hosts[host].name);
    }
    for host in overlay.hosts.iter().filter(|host| host.name != own.name) {
        if let Some(fallback) = host.fallback {
            let _ = writeln!(text, "  to a tenant at {}: {fallback}", host.name);
        }
    }
    text
}

/// A tenant's name, and what makes it differ from others.
/// The networks by name, and that of tenants that name none.
fn networks(overlay: &Overlay) -> String {
    let named: Vec<String> =
        overlay.networks.iter().map(|network| format!("{} ({})", network.name, network.vni)).collect();
    let vni = overlay.vni.map(|vni| format!("network {vni}"));
    match (named.is_empty(), vni) {
        (true, vni) => vni.unwrap_or_default(),
        (false, None) => format!("networks {}", named.join(", ")),
        (false, Some(vni)) => format!("{vni} and networks {}", named.join(", ")),
    }
}

fn fleet_tenant(overlay: &Overlay, tenant: &FleetTenant) -> String {
    let network = (overlay.vni != Some(tenant.network))
        .then(|| format!("network {}", overlay.network_name(tenant.network)));
    let weight = (tenant.weight > 1).then(|| format!("weight {}", tenant.weight));
    let balancer = tenant.balancer.then(|| "balancer".to_owned());
    let untouched = tenant.untouched.then(|| "ecn untouched".to_owned());
    let more: Vec<String> = [network, weight, balancer, untouched].into_iter().flatten().collect();
    if more.is_empty() { tenant.name.clone() } else { format!("{} ({})", tenant.name, more.join(", ")) }
}

/// A sub-policy that was checked alone: its part of the tree, without what depends on its place.
#[must_use]
pub fn sub_policy_text(checked: &Checked) -> String {
    let program = &checked.program;
    let place = program.tenants.first().map_or(NodeId(0), |tenant| tenant.node);
    let file = checked.sources.files().first().map_or("policy", |file| file.name.as_str());
    let mut text = format!("{file}: a sub-policy, checked alone\n\n{}", tree_table(program, place, None));
    if !program.limits.is_empty() {
        text.push('\n');
        text.push_str(&limit_table(program));
    }
    text.push_str(
        "\nWhat its classes are guaranteed, and whether its promises fit, depends on its place: check the operator's \
         file that names it.\n",
    );
    text
}

/// The tree from a node down; without bounds, those columns are left out.
fn tree_table(program: &Program, top: NodeId, bounds: Option<&HashMap<NodeId, Bound>>) -> String {
    let head = ["class", "order", "weight", "min", "max", "guaranteed", "delay up to", "via"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let via = vias(program);
    let mut open = vec![(top, String::new(), String::new())];
    while let Some((id, glyph, indent)) = open.pop() {
        let node = program.node(id);
        let bound = bounds.and_then(|bounds| bounds.get(&id));
        let dash = || "-".to_owned();
        let or_empty = |value: Option<String>| value.unwrap_or_default();
        rows.push(vec![
            format!("{glyph}{}", short(node)),
            order_words(program, node),
            match node.rate {
                Some(rate) => rate.to_string(),
                None if weighed(program, node) => node.weight.to_string(),
                None => String::new(),
            },
            or_empty(node.min.map(|min| min.to_string())),
            or_empty(node.max.map(|max| program.limit(max).rate.to_string())),
            or_empty(bound.map(|bound| bound.guaranteed.map_or_else(dash, |rate| rate.to_string()))),
            or_empty(bound.map(|bound| bound.delay.map_or_else(dash, |delay| delay.to_string()))),
            via.get(&id).map_or_else(String::new, |names| names.join(", ")),
        ]);
        for (index, &child) in node.children.iter().enumerate().rev() {
            let last = index + 1 == node.children.len();
            let (glyph, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            open.push((child, format!("{indent}{glyph}"), format!("{indent}{below}")));
        }
    }
    if program.nodes.iter().any(|node| node.rate.is_some()) {
        rows[0][2] = "weight or rate".to_owned();
    }
    if bounds.is_none() {
        for row in &mut rows {
            row.drain(5..7);
        }
    }
    table(&rows)
}

/// The stated limits that each node sends through.
fn vias(program: &Program) -> HashMap<NodeId, Vec<&str>> {
    let mut vias: HashMap<NodeId, Vec<&str>> = HashMap::new();
    for limit in &program.limits {
        if let Scope::Match { via, .. } = &limit.scope {
            via.iter().for_each(|&node| vias.entry(node).or_default().push(&limit.name));
        }
    }
    vias
}

fn limit_table(program: &Program) -> String {
    let mut rows = vec![["limit", "rate", "burst", "takes", "of"].map(str::to_owned).to_vec()];
    for limit in &program.limits {
        let (what, users) = scope_words(program, limit);
        let shown = users.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
        let users = if users.len() > 4 { format!("{shown} and {} more", users.len() - 4) } else { shown };
        rows.push(vec![limit.name.clone(), limit.rate.to_string(), limit.burst.to_string(), what, users]);
    }
    table(&rows)
}

/// The figures derived from the tenants' delay targets, if there are any.
fn promise_table(program: &Program) -> String {
    if program.tenants.iter().all(|tenant| tenant.slo.delay.is_empty()) {
        return String::new();
    }
    let head = [
        "tenant",
        "delay",
        "each way",
        "burst",
        "weight",
        "queue in",
        "pressed back",
        "worst out",
        "worst in",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    for (tenant, worst) in program.tenants.iter().zip(worst(program)) {
        let slo = &tenant.slo;
        let targets: Vec<String> = slo.delay.iter().map(ToString::to_string).collect();
        let max = program.node(tenant.node).max.filter(|_| program.node(tenant.node).tenant.is_some());
        rows.push(vec![
            tenant.name.clone(),
            or_dash((!targets.is_empty()).then(|| targets.join(", "))),
            or_dash(slo.each_way.map(|span| span.to_string())),
            or_dash(max.map(|max| program.limit(max).burst.to_string())),
            slo.weight.to_string(),
            format!("{} frames", slo.slots),
            or_dash(slo.threshold.map(|span| format!("above {span}"))),
            or_dash(worst.egress.ok().map(|span| span.to_string())),
            worst.ingress.to_string(),
        ]);
    }
    format!("\n{}\n{DERIVED}\n", table(&rows))
}

/// From which rate on frames wait on the way in, of tenants with a `max` for receiving.
fn ceilings(program: &Program) -> String {
    let with = program.tenants.iter().filter_map(|tenant| Some((&tenant.name, tenant.slo.ceiling?)));
    let shown: Vec<String> =
        with.clone().take(8).map(|(name, most)| format!("{name} above {}", most.rate)).collect();
    let more = with.count().saturating_sub(shown.len());
    if shown.is_empty() {
        return String::new();
    }
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "\nOn the way in, what comes beyond a tenant's `max` and {CEILING_SLACK}% for longer than {CEILING_BURST} waits: {}{more}\n",
        shown.join(", ")
    )
}

/// The origin of the derived figures.
const DERIVED: &str = "Derived from the targets: `each way` is half of the last target. `burst`, unless stated, is what \
    `max` carries in that time: two frames at least, and at most what it carries in 1ms. `queue in` is what the tenant's \
    part of a core, by weight, delivers in that time at 500ns a frame: 64 to 1024 frames, or 256 without a target. Where \
    control runs, senders are pressed back above two thirds of half a target (ten elevenths up to p50), and above 5us at \
    least. `worst in` is the delay behind a full queue.";

/// Why classes have no guarantee, or no bound on delay.
fn unbounded(bounds: &HashMap<NodeId, Bound>) -> String {
    let mut without: Vec<&Bound> =
        bounds.values().filter(|bound| bound.guaranteed.is_none() || bound.delay.is_none()).collect();
    without.sort_by_key(|bound| bound.class);
    let mut text = String::new();
    for bound in without.iter().take(20) {
        let _ = write!(text, "\n- {}: {}", bound.name, bound.why);
    }
    if without.len() > 20 {
        let _ = write!(text, "\n- and {} more", without.len() - 20);
    }
    if text.is_empty() { text } else { format!("{text}\n") }
}

/// Rows with their columns lined up; the first is the head.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
