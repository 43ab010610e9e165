//! `plimsoll run`, `reload` and `stats`.
//!
//! Why: an operator starts a daemon, changes its policy, and reads its counters.
//! From: the crate `daemon`.
//! Not here: the daemon itself.
//! Invariant: `--json` prints the API's answer.

use comfy_table::{CellAlignment, ColumnConstraint, Table};
use plimsoll_daemon::{
    Client, ClientError, HostStats, Options, PortStats, Rated, Record, Reloaded, Sandbox, Stats, query,
};
use plimsoll_scenario::FileKind;

use crate::args::{Ask, Rate, Reload, Run};
use crate::check::want;
use crate::failure::{Failure, print, print_json};
use crate::reader;
use crate::show::{count, drops_below_each_other, micros, rate, table, uplink};

/// Runs the daemon.
pub(crate) fn run(args: &Run) -> Result<(), Failure> {
    let record = args.record.clone().map(|file| Record { file, limit: args.record_limit });
    want(&args.file, FileKind::Policy)?;
    let sandbox = Sandbox { user: args.user.clone(), broker: "broker".to_owned() };
    let sandbox = (!args.no_sandbox).then_some(sandbox);
    let reader = Some(reader::process());
    Ok(plimsoll_daemon::run(&Options { file: args.file.clone(), cpu: args.cpu, record, reader, sandbox })?)
}

/// Opens ports and reads tenants' files for the daemon that has started this process.
pub(crate) fn broker() -> Result<(), Failure> {
    plimsoll_daemon::serve_broker(&*reader::process()).map_err(|error| Failure::Failed(error.to_string()))
}

/// Tells the daemon to read its policy file again.
pub(crate) fn reload(args: &Reload) -> Result<(), Failure> {
    let Reload { force, ask: args } = args;
    let path = if *force { "/v1/reload?force=true" } else { "/v1/reload" };
    let answer: Result<Reloaded, ClientError> = Client::new(&args.socket).post(path);
    let reloaded = match answer {
        Err(ClientError::Refused(why)) => {
            if args.json {
                print_json(&serde_json::json!({ "ok": false, "error": why }))?;
            }
            return Err(Failure::Wrong(why));
        }
        other => other?,
    };
    if args.json {
        return print_json(&reloaded);
    }
    let Reloaded { generation, changes, kept, flows, took, warnings } = reloaded;
    let changes = if changes.trim().is_empty() { "nothing has changed\n".to_owned() } else { changes };
    let changes = changes.trim_end();
    print(&format!(
        "{changes}\nreload {generation} is in force; it took {took}; {kept} waiting packets of {flows} flows kept their places\n{warnings}"
    ))
}

/// Changes a class's rate.
pub(crate) fn set_rate(args: &Rate) -> Result<(), Failure> {
    let bits = format!("{}bps", args.rate.get());
    let path = format!("/v1/rate?class={}&rate={bits}", query(&args.class));
    let rated: Rated = match Client::new(&args.ask.socket).post(&path) {
        Err(ClientError::Refused(why)) => return Err(Failure::Wrong(why)),
        other => other?,
    };
    if args.ask.json {
        return print_json(&rated);
    }
    print(&format!("{}: {} from now on; before, {}\n", rated.class, rated.rate, rated.before))
}

/// Prints counters.
pub(crate) fn stats(args: &Ask) -> Result<(), Failure> {
    let stats: Stats = Client::new(&args.socket).get("/v1/stats")?;
    if args.json {
        return print_json(&stats);
    }
    let parts =
        [tree(&stats), limits(&stats), ports(&stats), hosts(&stats), pairs(&stats), receivers(&stats)];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    print(&format!("{}\n", parts.join("\n\n")))
}

fn tree(stats: &Stats) -> Option<String> {
    let mut table = table(
        &["class", "rate", "packets", "bytes", "waiting", "p50", "p99", "p99.9", "marked", "drops"],
        &[
            CellAlignment::Left,
            CellAlignment::Right,
            CellAlignment::Right,
            CellAlignment::Right,
            CellAlignment::Right,
            CellAlignment::Right,
            CellAlignment::Right,
            CellAlignment::Right,
            CellAlignment::Right,
            CellAlignment::Left,
        ],
    );
    for node in &stats.nodes {
        let name = node.path.rsplit('/').next().unwrap_or(&node.path);
        let delay = |of: fn(&plimsoll_daemon::Delay) -> f64| {
            node.delay.as_ref().map_or("-".to_owned(), |d| micros(of(d)))
        };
        table.add_row([
            format!("{}{name}", "  ".repeat(node.depth as usize)),
            node.rate.map_or_else(String::new, |bits| rate(bits as f64)),
            count(node.packets),
            count(node.bytes),
            count(node.backlog_packets),
            delay(|d| d.p50),
            delay(|d| d.p99),
            delay(|d| d.p999),
            count(node.marked),
            drops_below_each_other(&node.drops),
        ]);
    }
    if let Some(rates) = table.column_mut(1).filter(|_| stats.nodes.iter().all(|node| node.rate.is_none())) {
        rates.set_constraint(ColumnConstraint::Hidden);
    }
    if let Some(marks) = table.column_mut(8).filter(|_| stats.nodes.iter().all(|node| node.marked == 0)) {
        marks.set_constraint(ColumnConstraint::Hidden);
    }
    Some(table.to_string())
}

fn limits(stats: &Stats) -> Option<String> {
    if stats.limits.is_empty() {
        return None;
    }
    let mut table = table(
        &["limit", "rate", "packets", "bytes", "waiting", "waits"],
        &[
            CellAlignment::Left,
            CellAlignment::Right,
            CellAlignment::Right,
            CellAlignment::Right,
            CellAlignment::Right,
            CellAlignment::Right,
        ],
    );
    for (name, limit) in &stats.limits {
        table.add_row([
            name.clone(),
            rate(limit.rate as f64),
            count(limit.packets),
            count(limit.bytes),
            count(limit.waiting.into()),
            count(limit.parked),
        ]);
    }
    Some(table.to_string())
}

fn ports(stats: &Stats) -> Option<String> {
    let mut table = table(
        &["port", "device", "from it", "to it", "flows", "held", "drops", "events"],
        &[
            CellAlignment::Left,
            CellAlignment::Left,
            CellAlignment::Right,
            CellAlignment::Right,
            CellAlignment::Right,
            CellAlignment::Right,
            CellAlignment::Left,
            CellAlignment::Left,
        ],
    );
    for (name, port) in &stats.tenants {
        add_port(&mut table, name, port);
    }
    add_port(&mut table, uplink(stats), &stats.uplink);
    Some(table.to_string())
}

fn hosts(stats: &Stats) -> Option<String> {
    let fleet = stats.fleet.as_ref()?;
    let right = CellAlignment::Right;
    let left = CellAlignment::Left;
    let mut table = table(
        &["host", "address", "next hop", "state", "heard", "to it", "from it", "feedback"],
        &[left, left, left, left, right, right, right, left],
    );
    for (name, host) in &fleet.hosts {
        table.add_row([
            name.clone(),
            host.address.clone(),
            host.next_hop.clone().unwrap_or_else(|| "NOT KNOWN".to_owned()),
            with_session(host, fleet.key.as_deref()),
            host.heard.map_or_else(|| "never".to_owned(), |ago| format!("{} ago", micros(ago * 1e6))),
            count(host.sent),
            count(host.received),
            drops_below_each_other(&host.feedback),
        ]);
    }
    let key = fleet.key.as_ref().map(|key| format!("\nThis host seals with key {key}.")).unwrap_or_default();
    Some(format!("{table}{key}"))
}

/// The state of a host, and where frames are sealed, whether there is a session with it. With the keys that it uses, where one is
/// not this host's `own`.
fn with_session(host: &HostStats, own: Option<&str>) -> String {
    let state = match host.session {
        None => host.state.clone(),
        Some(true) => format!("{}, sealed", host.state),
        Some(false) => format!("{}, NO SESSION", host.state),
    };
    let others = |keys: &[String]| keys.iter().any(|key| Some(key.as_str()) != own);
    let from = others(&host.keys_from).then(|| format!("from it by key {}", host.keys_from.join(" and ")));
    let to = host.key_to.as_ref().filter(|key| others(std::slice::from_ref(key)));
    let to = to.map(|key| format!("to it by key {key}"));
    [Some(state), from, to].into_iter().flatten().collect::<Vec<_>>().join("\n")
}

/// The limits of each sender and receiver: stated by the receiver, or by default while it is silent.
fn pairs(stats: &Stats) -> Option<String> {
    let pairs = &stats.fleet.as_ref().filter(|fleet| !fleet.pairs.is_empty())?.pairs;
    let right = CellAlignment::Right;
    let left = CellAlignment::Left;
    let heads = ["from", "to", "state", "may send", "packets/s", "packets", "bytes", "waiting", "waits"];
    let mut table = table(&heads, &[left, left, left, right, right, right, right, right, right]);
    for pair in pairs {
        table.add_row([
            pair.tenant.clone(),
            format!("{}@{}", pair.peer, pair.host),
            pair.state.clone(),
            rate(pair.rate as f64),
            pair.packet_rate.map_or_else(|| "-".to_owned(), count),
            count(pair.packets),
            count(pair.bytes),
            count(pair.waiting.into()),
            count(pair.parked),
        ]);
    }
    Some(table.to_string())
}

fn receivers(stats: &Stats) -> Option<String> {
    let receivers = &stats.fleet.as_ref().filter(|fleet| !fleet.receivers.is_empty())?.receivers;
    let right = CellAlignment::Right;
    let heads = ["receiver", "may receive", "each sender", "packets/s", "senders"];
    let mut table = table(&heads, &[CellAlignment::Left, right, right, right, right]);
    for (name, seen) in receivers {
        table.add_row([
            name.clone(),
            if seen.capacity == 0 { "idle".to_owned() } else { rate(seen.capacity as f64) },
            rate(seen.rate as f64),
            seen.packet_rate.map_or_else(|| "-".to_owned(), count),
            count(seen.senders as u64),
        ]);
    }
    Some(table.to_string())
}

fn add_port(table: &mut Table, name: &str, port: &PortStats) {
    let mut lost = port.drops.clone();
    lost.extend(port.undelivered.iter().map(|(why, count)| (format!("undelivered_{why}"), *count)));
    table.add_row([
        name.to_owned(),
        match &port.port {
            None => "LOST".to_owned(),
            Some(name) if port.down => format!("{name} (down)"),
            Some(name) => match port.thread {
                Some(thread) => format!("{name}, thread {thread}"),
                None => name.clone(),
            },
        },
        count(port.rx_packets),
        count(port.tx_packets),
        count(port.flows.into()),
        count(port.held.into()),
        drops_below_each_other(&lost),
        drops_below_each_other(&port.events),
    ]);
}
