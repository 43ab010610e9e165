//! Counters as Prometheus reads them.
//!
//! Why: operators' dashboards and alerts start from a scrape.
//! From: the text exposition format 0.0.4; one page written from one [`Stats`], so that its numbers belong together.
//! Not here: serving it (`api`).
//! Invariant: every label value is escaped; every counter ends in `_total`; units are bytes and seconds.

use core::fmt::Write;

use plimsoll_slo::PromiseSeconds;

use crate::stats::{
    Delay, FleetStats, FlowStats, HostStats, IngressStats, PairStats, PortStats, ProgramStats, ReceiverStats,
    RingsStats, Stats, ThreadStats,
};

/// Renders the metrics page.
#[must_use]
pub fn page(stats: &Stats) -> String {
    let mut page = Page::default();
    page.head("plimsoll_uptime_seconds", "gauge", "Time since the daemon started.");
    page.line("plimsoll_uptime_seconds", &[], stats.uptime);
    page.head("plimsoll_reloads_total", "counter", "Policies put in force since the start.");
    page.line("plimsoll_reloads_total", &[], f64::from(stats.generation));
    let name = "plimsoll_nic_drop_seconds_total";
    page.head(
        name,
        "counter",
        "Seconds in which the uplink dropped more than 10,000 packets before the engine read them.",
    );
    page.line(name, &[], stats.nic_drop_seconds as f64);
    promises(&mut page, stats);
    classes(&mut page, stats);
    limits(&mut page, stats);
    ports(&mut page, stats);
    delays(&mut page, stats);
    engine(&mut page, stats);
    if let Some(leases) = &stats.threads {
        threads(&mut page, leases);
    }
    if let Some(fleet) = &stats.fleet {
        hosts(&mut page, fleet);
        pairs(&mut page, fleet);
        receivers(&mut page, fleet);
    }
    if let Some(flows) = &stats.flows {
        backpressure(&mut page, flows);
    }
    page.text
}

fn promises(page: &mut Page, stats: &Stats) {
    let name = "plimsoll_promise_seconds_total";
    page.head(name, "counter", "Seconds in which a tenant's promise was judged, by the judgement.");
    for (tenant, seconds) in &stats.promises {
        let PromiseSeconds { held, idle, beyond, broken } = *seconds;
        for (verdict, count) in [("held", held), ("idle", idle), ("beyond", beyond), ("broken", broken)] {
            page.line(name, &[("tenant", tenant), ("verdict", verdict)], count as f64);
        }
    }
}

/// How several engine threads share the link.
fn threads(page: &mut Page, now: &ThreadStats) {
    let mut one = |name: &str, kind: &str, help: &str, value: f64| {
        page.head(name, kind, help);
        page.line(name, &[], value);
    };
    one("plimsoll_engine_threads", "gauge", "Dataplane threads that share the link.", now.count as f64);
    let error = "The most by which a class was off its share in the last 10 ms, as a part of that share.";
    one("plimsoll_lease_share_error_ratio", "gauge", error, now.share_error);
    let excess = "The most bytes that left through a limit, on all threads, before it had earned them.";
    one("plimsoll_lease_excess_bytes", "gauge", excess, now.excess as f64);
    one(
        "plimsoll_lease_epochs_total",
        "counter",
        "Leases that were computed under this policy.",
        now.epochs as f64,
    );
    let unleased = "Groups of flow queues for which the leases had no room.";
    one("plimsoll_lease_unleased_total", "counter", unleased, now.unleased as f64);
    let moved = "Moves of tenants to another engine thread, as load shifts.";
    one("plimsoll_tenant_migrations_total", "counter", moved, now.migrations as f64);
}

/// Flows, as totals: a label for each flow would make series without bound.
fn backpressure(page: &mut Page, flows: &FlowStats) {
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        page.head(name, kind, help);
        page.line(name, &[], value as f64);
    };
    one("plimsoll_counted_packets_total", "counter", "Packets of flows that are counted.", flows.counted);
    let unlisted = "Counted packets of flows that found no place in the tables.";
    one("plimsoll_counted_unlisted_total", "counter", unlisted, flows.unlisted);
    one("plimsoll_heavy_flows", "gauge", "Flows that are heavy hitters.", flows.heavy);
    let Some(watched) = &flows.watched else { return };
    let measured = "Whether the load of what the policy watches can be measured.";
    one("plimsoll_backpressure_measured", "gauge", measured, watched.measured.into());
    let overloaded = "Whether what the policy watches is overloaded.";
    one("plimsoll_backpressure_overloaded", "gauge", overloaded, watched.overloaded.into());
    one("plimsoll_backpressure_flows", "gauge", "Flows that are slowed down.", flows.slowed_down);
    one("plimsoll_backpressure_overloads_total", "counter", "Overloads that began.", watched.overloads);
    one("plimsoll_backpressure_started_total", "counter", "Flows that were slowed down.", watched.started);
    one("plimsoll_backpressure_ended_total", "counter", "Flows that were let go again.", watched.ended);
    one("plimsoll_backpressure_marked_total", "counter", "Packets that were marked (CE).", watched.marked);
    let left = "Choices of a flow that was left alone as too many were slowed down.";
    one("plimsoll_backpressure_left_total", "counter", left, watched.left);
    if let Some(top) = watched.top {
        let name = "plimsoll_backpressure_top_ratio";
        page.head(
            name,
            "gauge",
            "Part of heavy hitters' packets that the top flow had in the last overload.",
        );
        page.line(name, &[], top);
    }
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        if !labels.is_empty() {
            let list: Vec<String> =
                labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escape(value))).collect();
            let _ = write!(self.text, "{{{}}}", list.join(","));
        }
        let _ = writeln!(self.text, " {value}");
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], delay: &Delay) {
        let all = delay.count as f64;
        let buckets = delay.buckets.iter().map(|(bound, count)| ((bound / 1e6).to_string(), *count as f64));
        for (bound, count) in buckets.chain([("+Inf".to_owned(), all)]) {
            let labels: Vec<(&str, &str)> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.line(&format!("{name}_bucket"), &labels, count);
        }
        self.line(&format!("{name}_sum"), labels, delay.mean * all / 1e6);
        self.line(&format!("{name}_count"), labels, all);
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn classes(page: &mut Page, stats: &Stats) {
    let classes: Vec<_> = stats.nodes.iter().filter(|node| node.is_class()).collect();
    page.head("plimsoll_class_packets_total", "counter", "Frames sent, by class.");
    for class in &classes {
        page.line("plimsoll_class_packets_total", &[("class", &class.path)], class.packets as f64);
    }
    page.head("plimsoll_class_bytes_total", "counter", "Bytes sent, by class.");
    for class in &classes {
        page.line("plimsoll_class_bytes_total", &[("class", &class.path)], class.bytes as f64);
    }
    page.head("plimsoll_class_backlog_packets", "gauge", "Descriptors that wait, by class.");
    for class in &classes {
        page.line("plimsoll_class_backlog_packets", &[("class", &class.path)], class.backlog_packets as f64);
    }
    page.head("plimsoll_class_backlog_bytes", "gauge", "Bytes that wait, by class.");
    for class in &classes {
        page.line("plimsoll_class_backlog_bytes", &[("class", &class.path)], class.backlog_bytes as f64);
    }
    page.head("plimsoll_class_rate_bytes_per_second", "gauge", "Strict rate in effect, by class.");
    for node in &stats.nodes {
        if let Some(rate) = node.rate {
            page.line("plimsoll_class_rate_bytes_per_second", &[("class", &node.path)], rate as f64 / 8.0);
        }
    }
    page.head(
        "plimsoll_class_marked_total",
        "counter",
        "Frames that left with a mark of congestion, by class.",
    );
    for class in &classes {
        page.line("plimsoll_class_marked_total", &[("class", &class.path)], class.marked as f64);
    }
    let help = "Descriptors not taken, and frames that had waited for too long, by class and reason.";
    page.head("plimsoll_class_drops_total", "counter", help);
    for class in &classes {
        for (reason, count) in &class.drops {
            page.line(
                "plimsoll_class_drops_total",
                &[("class", &class.path), ("reason", reason)],
                *count as f64,
            );
        }
    }
    page.head("plimsoll_class_delay_seconds", "histogram", "Time from doorbell to port, by class.");
    for class in &classes {
        if let Some(delay) = &class.delay {
            page.histogram("plimsoll_class_delay_seconds", &[("class", &class.path)], delay);
        }
    }
}

/// Tenants' delays, in the three parts that make up a virtual NIC's.
fn delays(page: &mut Page, stats: &Stats) {
    let name = "plimsoll_tenant_delay_seconds";
    let help = "Time of a tenant's packets without shaping: egress, and on the way in nic and engine.";
    page.head(name, "histogram", help);
    for (tenant, port) in &stats.tenants {
        let parts =
            [("egress", &port.delay.egress), ("nic", &port.delay.nic), ("engine", &port.delay.engine)];
        for (part, delay) in parts {
            if let Some(delay) = delay {
                page.histogram(name, &[("tenant", tenant), ("part", part)], delay);
            }
        }
    }
}

fn limits(page: &mut Page, stats: &Stats) {
    page.head("plimsoll_limit_bytes_total", "counter", "Bytes sent under a limit.");
    for (name, limit) in &stats.limits {
        page.line("plimsoll_limit_bytes_total", &[("limit", name)], limit.bytes as f64);
    }
    page.head("plimsoll_limit_packets_total", "counter", "Frames sent under a limit.");
    for (name, limit) in &stats.limits {
        page.line("plimsoll_limit_packets_total", &[("limit", name)], limit.packets as f64);
    }
    page.head("plimsoll_limit_parked_total", "counter", "Times that flow queues had to wait for a limit.");
    for (name, limit) in &stats.limits {
        page.line("plimsoll_limit_parked_total", &[("limit", name)], limit.parked as f64);
    }
    page.head("plimsoll_limit_waiting", "gauge", "Groups of flow queues that wait for a limit.");
    for (name, limit) in &stats.limits {
        page.line("plimsoll_limit_waiting", &[("limit", name)], f64::from(limit.waiting));
    }
}

/// One figure of a port.
type PortFigure = fn(&PortStats) -> u64;

fn ports(page: &mut Page, stats: &Stats) {
    let tenants = stats.tenants.iter().map(|(name, port)| (name.as_str(), port));
    let all: Vec<(&str, &PortStats)> = tenants.chain([("uplink", &stats.uplink)]).collect();
    let totals: [(&str, &str, PortFigure); 4] = [
        ("plimsoll_port_rx_packets_total", "Frames from a port.", |port| port.rx_packets),
        ("plimsoll_port_rx_bytes_total", "Bytes from a port.", |port| port.rx_bytes),
        ("plimsoll_port_tx_packets_total", "Frames to a port.", |port| port.tx_packets),
        ("plimsoll_port_tx_bytes_total", "Bytes to a port.", |port| port.tx_bytes),
    ];
    for (name, help, value) in totals {
        page.head(name, "counter", help);
        for (port, stats) in &all {
            page.line(name, &[("port", port)], value(stats) as f64);
        }
    }
    page.head(
        "plimsoll_port_drops_total",
        "counter",
        "Frames lost, by the port that they came from, and reason.",
    );
    for (port, stats) in &all {
        for (reason, count) in &stats.drops {
            page.line("plimsoll_port_drops_total", &[("port", port), ("reason", reason)], *count as f64);
        }
    }
    page.head("plimsoll_port_undelivered_total", "counter", "Frames that a port could not take, by reason.");
    for (port, stats) in &all {
        for (reason, count) in &stats.undelivered {
            page.line(
                "plimsoll_port_undelivered_total",
                &[("port", port), ("reason", reason)],
                *count as f64,
            );
        }
    }
    page.head("plimsoll_port_events_total", "counter", "What else happened at a port.");
    for (port, stats) in &all {
        for (event, count) in &stats.events {
            page.line("plimsoll_port_events_total", &[("port", port), ("event", event)], *count as f64);
        }
    }
    page.head("plimsoll_port_up", "gauge", "Whether the port is there, and the uplink is not down.");
    for (port, stats) in &all {
        let up = stats.port.is_some() && !stats.down;
        page.line("plimsoll_port_up", &[("port", port)], f64::from(u8::from(up)));
    }
    standby(page, stats);
    ingress(page, &all);
    page.head("plimsoll_tenant_flows", "gauge", "Flows with a queue of their own, by tenant.");
    for (name, tenant) in &stats.tenants {
        page.line("plimsoll_tenant_flows", &[("tenant", name)], f64::from(tenant.flows));
    }
    page.head("plimsoll_tenant_descriptors", "gauge", "Descriptors in the engine, by tenant.");
    for (name, tenant) in &stats.tenants {
        page.line("plimsoll_tenant_descriptors", &[("tenant", name)], f64::from(tenant.held));
    }
    rings(page, stats);
    programs(page, stats);
}

/// Tenants' programs.
fn programs(page: &mut Page, stats: &Stats) {
    let figures: [Figure<ProgramStats>; 10] = [
        ("calls_total", "counter", "Calls of a tenant's program with packets.", |seen| seen.calls as f64),
        ("packets_total", "counter", "Packets that it was given.", |seen| seen.packets as f64),
        (
            "direct_total",
            "counter",
            "Of these, packets that were written into its memory as they were fetched.",
            |seen| seen.direct as f64,
        ),
        ("added_total", "counter", "Packets that it has added.", |seen| seen.added as f64),
        ("redirected_total", "counter", "Packets that it has sent to another port.", |seen| {
            seen.redirected as f64
        }),
        ("to_units_total", "counter", "Packets that it has sent to coprocessors.", |seen| {
            seen.to_units as f64
        }),
        ("faults_total", "counter", "Calls that have failed.", |seen| seen.faults as f64),
        ("overruns_total", "counter", "Calls that have taken too long.", |seen| seen.overruns as f64),
        ("core_seconds_total", "counter", "CPU time of its calls on a core of its own.", |seen| {
            seen.core_time
        }),
        ("halted", "gauge", "Whether it was halted for that.", |seen| f64::from(u8::from(seen.halted))),
    ];
    let programs: Vec<_> = stats
        .tenants
        .iter()
        .filter_map(|(name, port)| Some((name.as_str(), port.program.as_ref()?)))
        .collect();
    if programs.is_empty() {
        return;
    }
    let things = programs.iter().map(|(name, seen)| (vec![("tenant", *name)], *seen));
    table(page, "plimsoll_program", &figures, things);
}

/// The uplink's two ports, where it has a standby.
fn standby(page: &mut Page, stats: &Stats) {
    let Some(both) = &stats.standby else { return };
    page.head(
        "plimsoll_uplink_port_up",
        "gauge",
        "Whether one of the uplink's two ports is there and has a carrier.",
    );
    for (place, port) in both.ports() {
        page.line("plimsoll_uplink_port_up", &[("place", place)], f64::from(u8::from(port.up)));
    }
    page.head(
        "plimsoll_uplink_port_active",
        "gauge",
        "Whether this one of the uplink's two ports carries frames.",
    );
    for (place, _) in both.ports() {
        let active = f64::from(u8::from(both.active == place));
        page.line("plimsoll_uplink_port_active", &[("place", place)], active);
    }
    page.head("plimsoll_uplink_switches_total", "counter", "How often the uplink's other port took over.");
    page.line("plimsoll_uplink_switches_total", &[], both.switches as f64);
}

/// Virtual machines' rings, by pair.
fn rings(page: &mut Page, stats: &Stats) {
    let figures: [Figure<RingsStats>; 4] = [
        ("posted", "gauge", "Frames that a guest has posted and that have not been taken.", |pair| {
            pair.posted.into()
        }),
        ("in_flight", "gauge", "Frames that were taken from a guest and have not left.", |pair| {
            pair.in_flight.into()
        }),
        (
            "out_of_turn",
            "gauge",
            "Frames that have left and whose descriptors wait for those before them.",
            |pair| pair.out_of_turn.into(),
        ),
        ("free", "gauge", "Buffers that a guest has free for frames to come.", |pair| pair.free.into()),
    ];
    let pairs =
        stats.tenants.iter().flat_map(|(name, port)| (0_u32..).zip(&port.rings).map(move |at| (name, at)));
    let named: Vec<(&str, String, &RingsStats)> =
        pairs.map(|(name, (index, pair))| (name.as_str(), index.to_string(), pair)).collect();
    let things =
        named.iter().map(|(name, index, pair)| (vec![("tenant", *name), ("pair", index.as_str())], *pair));
    table(page, "plimsoll_ring", &figures, things);
}

fn ingress(page: &mut Page, ports: &[(&str, &PortStats)]) {
    let figures: [Figure<IngressStats>; 5] = [
        ("packets_total", "counter", "Frames that the uplink brought for a tenant.", |seen| {
            seen.packets as f64
        }),
        ("dropped_total", "counter", "Of these, frames that found its queue full.", |seen| {
            seen.dropped as f64
        }),
        ("over_max_total", "counter", "Of these, frames beyond what it may receive.", |seen| {
            seen.over_max as f64
        }),
        ("waiting", "gauge", "Frames that wait for their turn.", |seen| f64::from(seen.waiting)),
        ("cpu_seconds_total", "counter", "CPU time that they took then.", |seen| seen.cpu),
    ];
    let things = ports.iter().map(|(port, stats)| (vec![("port", *port)], &stats.ingress));
    table(page, "plimsoll_ingress", &figures, things);
    let name = "plimsoll_ingress_wait_seconds";
    page.head(name, "summary", "What frames from the uplink had waited at their turn.");
    for (port, PortStats { ingress, .. }) in ports {
        let served = ingress.served as f64;
        page.line(&format!("{name}_sum"), &[("port", port)], ingress.wait_mean * served / 1e6);
        page.line(&format!("{name}_count"), &[("port", port)], served);
    }
}

fn engine(page: &mut Page, stats: &Stats) {
    let engine = &stats.engine;
    let totals = [
        ("plimsoll_engine_pulls_total", "Pulls handed out.", engine.pulls),
        ("plimsoll_engine_pairs_total", "Enqueue and dequeue pairs on the policy's tree.", engine.pairs),
        ("plimsoll_engine_bad_doorbells_total", "Doorbell words that made no sense.", engine.bad_doorbells),
        ("plimsoll_engine_turns_total", "Rounds of the engine's loop.", engine.turns),
        ("plimsoll_engine_doorbell_batches_total", "Doorbell writes.", engine.doorbell_batches),
        ("plimsoll_engine_doorbell_entries_total", "Doorbells.", engine.doorbell_entries),
    ];
    for (name, help, value) in totals {
        page.head(name, "counter", help);
        page.line(name, &[], value as f64);
    }
    let cpu = "plimsoll_engine_cpu_seconds_total";
    page.head(cpu, "counter", "Time for which the engine's thread had a core.");
    page.line(cpu, &[], engine.cpu);
    if let Some(seconds) = engine.no_core {
        let name = "plimsoll_engine_no_core_seconds_total";
        page.head(name, "counter", "Time for which the engine's thread was ready to run and had no core.");
        page.line(name, &[], seconds);
    }
    let polls = "Whether the engine's thread polls instead of sleeping, and so always uses a whole core.";
    page.head("plimsoll_engine_busy_poll", "gauge", polls);
    page.line("plimsoll_engine_busy_poll", &[], f64::from(u8::from(engine.busy_poll)));
    if let Some(group) = engine.program_cache_group {
        let name = "plimsoll_program_cache_group";
        page.head(
            name,
            "gauge",
            "Whether programs are held to a part of the last-level cache, all together.",
        );
        page.line(name, &[], f64::from(u8::from(group)));
    }
    page.head("plimsoll_engine_descriptors", "gauge", "Descriptors held.");
    page.line("plimsoll_engine_descriptors", &[], f64::from(engine.held));
}

/// One metric: name, kind, help, and its value.
type Figure<T> = (&'static str, &'static str, &'static str, fn(&T) -> f64);

/// Writes each metric of each item, with the item's labels.
fn table<'t, T: 't>(
    page: &mut Page,
    prefix: &str,
    figures: &[Figure<T>],
    things: impl Iterator<Item = (Vec<(&'static str, &'t str)>, &'t T)> + Clone,
) {
    for (name, kind, help, value) in figures {
        let name = format!("{prefix}_{name}");
        page.head(&name, kind, help);
        for (labels, thing) in things.clone() {
            page.line(&name, &labels, value(thing));
        }
    }
}

fn hosts(page: &mut Page, fleet: &FleetStats) {
    let figures: [Figure<HostStats>; 5] = [
        ("up", "gauge", "Whether the way to another host is known.", |host| {
            f64::from(u8::from(host.next_hop.is_some()))
        }),
        ("silent", "gauge", "Whether frames go to a host that does not say what it can take.", |host| {
            f64::from(u8::from(host.state == "silent"))
        }),
        ("session", "gauge", "Whether frames to a host are sealed.", |host| {
            f64::from(u8::from(host.session == Some(true)))
        }),
        ("sent_packets_total", "counter", "Tenants' frames to a host.", |host| host.sent as f64),
        ("received_packets_total", "counter", "Packets of the overlay from a host.", |host| {
            host.received as f64
        }),
    ];
    let things = fleet.hosts.iter().map(|(host, stats)| (vec![("host", host.as_str())], stats));
    table(page, "plimsoll_host", &figures, things);
    page.head(
        "plimsoll_feedback_total",
        "counter",
        "Messages of feedback, by the host that they are to or from, and way.",
    );
    for (host, stats) in &fleet.hosts {
        for (way, count) in &stats.feedback {
            page.line("plimsoll_feedback_total", &[("host", host), ("way", way)], *count as f64);
        }
    }
}

fn pairs(page: &mut Page, fleet: &FleetStats) {
    let figures: [Figure<PairStats>; 4] = [
        ("rate_bytes_per_second", "gauge", "What a tenant may send to a tenant elsewhere.", |pair| {
            pair.rate as f64 / 8.0
        }),
        ("fallback", "gauge", "Whether that is the fallback, as the other host does not say.", |pair| {
            f64::from(u8::from(pair.state == "fallback"))
        }),
        ("bytes_total", "counter", "Bytes sent to a tenant elsewhere.", |pair| pair.bytes as f64),
        ("parked_total", "counter", "Times that flow queues had to wait for what it may send.", |pair| {
            pair.parked as f64
        }),
    ];
    let things = fleet.pairs.iter().map(|pair| {
        (vec![("tenant", pair.tenant.as_str()), ("peer", &pair.peer), ("host", &pair.host)], pair)
    });
    table(page, "plimsoll_pair", &figures, things);
}

fn receivers(page: &mut Page, fleet: &FleetStats) {
    let figures: [Figure<ReceiverStats>; 3] = [
        (
            "capacity_bytes_per_second",
            "gauge",
            "What a tenant may receive; 0 for an idle one without a minimum.",
            |seen| seen.capacity as f64 / 8.0,
        ),
        ("sender_rate_bytes_per_second", "gauge", "What each of its senders may send to it.", |seen| {
            seen.rate as f64 / 8.0
        }),
        ("senders", "gauge", "Senders that are known by name.", |seen| seen.senders as f64),
    ];
    let things = fleet.receivers.iter().map(|(tenant, stats)| (vec![("tenant", tenant.as_str())], stats));
    table(page, "plimsoll_receiver", &figures, things);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::NodeStats;

    #[test]
    fn names_are_escaped_and_histograms_complete() {
        let delay = Delay { count: 3, mean: 2.0, buckets: vec![(10.0, 2)], ..Delay::default() };
        let node = NodeStats {
            path: "a\"b".into(),
            kind: "class".into(),
            delay: Some(delay),
            rate: Some(80),
            marked: 7,
            ..NodeStats::default()
        };
        let page = page(&Stats { nodes: vec![node], ..Stats::default() });
        assert!(page.contains(r#"plimsoll_class_packets_total{class="a\"b"} 0"#), "{page}");
        assert!(page.contains(r#"plimsoll_class_marked_total{class="a\"b"} 7"#), "{page}");
        assert!(page.contains(r#"plimsoll_class_rate_bytes_per_second{class="a\"b"} 10"#), "{page}");
        assert!(
            page.contains(r#"plimsoll_class_delay_seconds_bucket{class="a\"b",le="0.00001"} 2"#),
            "{page}"
        );
        assert!(page.contains(r#"plimsoll_class_delay_seconds_bucket{class="a\"b",le="+Inf"} 3"#), "{page}");
        assert!(page.contains(r#"plimsoll_class_delay_seconds_sum{class="a\"b"} 0.000006"#), "{page}");
    }

    #[test]
    fn a_tenants_delay_comes_in_its_parts() {
        let delay = Delay { count: 3, mean: 2.0, buckets: vec![(10.0, 2)], ..Delay::default() };
        let mut shop = PortStats::default();
        shop.delay.engine = Some(delay);
        let page = page(&Stats { tenants: [("shop".to_owned(), shop)].into(), ..Stats::default() });
        let line = r#"plimsoll_tenant_delay_seconds_bucket{tenant="shop",part="engine",le="0.00001"} 2"#;
        assert!(page.contains(line), "{page}");
        assert!(!page.contains(r#"part="nic""#), "what no port tells is not shown as zero");
    }

    #[test]
    fn every_line_is_a_comment_or_a_sample() {
        for line in page(&Stats::default()).lines() {
            let sample = line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<f64>().is_ok());
            assert!(line.starts_with("# ") || sample, "{line}");
        }
    }
}
