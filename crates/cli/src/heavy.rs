//! `plimsoll heavy`: lists the flows that send most packets.
//!
//! Why: an operator whose core is full wants to know which flow fills it.
//! From: the daemon's `/v1/heavy`.
//! Not here: which flows are counted, and how (`plimsoll_daemon`).
//! Invariant: `--json` prints the API's answer.

use comfy_table::CellAlignment::{Left, Right};
use plimsoll_daemon::{Client, HeavyReport, HeavyRow, HeldRow, PressedRow, UpdatesRow, WatchedRow};

use crate::args::Ask;
use crate::failure::{Failure, print, print_json};
use crate::show::{count, micros, rate, table};

/// Shows the heavy hitters of the running daemon.
pub(crate) fn heavy(args: &Ask) -> Result<(), Failure> {
    let report: Option<HeavyReport> = Client::new(&args.socket).get("/v1/heavy")?;
    let Some(report) = report else {
        let why = "no flow is counted: add `backpressure: {}` to the policy file, then `plimsoll reload`";
        return Err(Failure::Wrong(why.to_owned()));
    };
    if args.json { print_json(&report) } else { print(&text(&report)) }
}

fn text(report: &HeavyReport) -> String {
    let HeavyReport { over, packets, bits, counted: [_, unlisted], .. } = report;
    let all = format!("{} packets/s, {}", count(packets.round() as u64), rate(*bits));
    let mut text = if report.flows.is_empty() && report.over == 0.0 {
        "no flow is counted on this host\n".to_owned()
    } else if report.flows.is_empty() {
        format!("no flow is heavy; all flows together: {all}\n")
    } else {
        let heads =
            ["tenant", "way", "flow", "packets/s", "rate", "part", "since", "round trip", "slowed down"];
        // Without anything watched no flow is slowed down, and no round trip is measured.
        let columns = if report.watched.is_some() { heads.len() } else { heads.len() - 2 };
        let sides = [Left, Left, Left, Right, Right, Right, Right, Right, Left];
        let mut table = table(&heads[..columns], &sides[..columns]);
        report.flows.iter().for_each(|flow| _ = table.add_row(row(flow).into_iter().take(columns)));
        format!("the last {over:.1} s; all flows together: {all}\n{table}\n")
    };
    if let Some(row) = &report.watched {
        text.push_str(&watched(row));
    }
    if !report.held.is_empty() {
        let heads = ["tenant", "flow", "goes to", "held to", "as asked by", "since", "for"];
        let mut table = table(&heads, &[Left, Left, Left, Right, Left, Right, Right]);
        for HeldRow { flow, tenant, to, host, receiver_of, rate: bits, age, left } in &report.held {
            let (age, left) = (format!("{age:.0}s ago"), format!("{left:.1}s more"));
            let host = if receiver_of.is_some() { "its receiver (ECN)".to_owned() } else { host.clone() };
            table.add_row([tenant.clone(), flow.clone(), to.clone(), rate(*bits as f64), host, age, left]);
        }
        text.push_str(&format!("{table}\n"));
    }
    text.push_str(&updates(&report.updates));
    if *unlisted > 0 {
        text.push_str(&format!("{} of flows that found no place\n", several(*unlisted, "packet")));
    }
    text
}

/// How often the flow table was updated, and why; nothing where it was not.
fn updates(UpdatesRow { bucket_overflows, counter_overflows, periodic_updates }: &UpdatesRow) -> String {
    if bucket_overflows + counter_overflows + periodic_updates == 0 {
        return String::new();
    }
    let [full, thousand, ended] = [*bucket_overflows, *counter_overflows, *periodic_updates].map(count);
    format!(
        "updates of the flow table: {full} as a bucket was full, {thousand} after a thousand packets of a flow, {ended} at the \
         end of a millisecond\n"
    )
}

fn row(flow: &HeavyRow) -> [String; 9] {
    [
        flow.tenant.clone(),
        flow.from.as_ref().map_or_else(|| flow.direction.clone(), |from| format!("in from {from}")),
        flow.headers(),
        count(flow.packets.round() as u64),
        rate(flow.bits),
        format!("{:.1} %", flow.part * 100.0),
        format!("{:.0}s ago", flow.age),
        flow.round_trip.map_or_else(String::new, |seconds| micros(seconds * 1e6)),
        flow.pressed.as_ref().map_or_else(String::new, pressed),
    ]
}

/// How a flow is slowed down: `to 850Mbps, 1 of 1983 marked, 3s ago`.
pub(crate) fn pressed(PressedRow { rate: bits, how, interval, age }: &PressedRow) -> String {
    let how = match (interval, how.strip_prefix("marked")) {
        (Some(interval), Some(more)) => format!("1 of {interval} marked{more}"),
        _ => how.clone(),
    };
    format!("to {}, {how}, {age:.0}s ago", rate(*bits as f64))
}

/// What is watched, in one line.
fn watched(watched: &WatchedRow) -> String {
    let WatchedRow { what, measured, overloaded, top, overloads, started, marked, left, .. } = watched;
    let state = match (measured, overloaded) {
        (false, _) => "not measured, so no flow is slowed down",
        (true, true) => "overloaded",
        (true, false) => "not overloaded",
    };
    let top = top
        .map_or_else(String::new, |top| format!(", top flow {:.1} % of heavy hitters' packets", top * 100.0));
    let marked = if *marked > 0 { format!(", {} marked", several(*marked, "packet")) } else { String::new() };
    let left = if *left > 0 {
        format!(", {} left alone as `flows` were slowed down", count(*left))
    } else {
        String::new()
    };
    let (overloads, started) = (several(*overloads, "overload"), several(*started, "flow"));
    format!("watched: {what}: {state} ({overloads}{top}); {started} slowed down so far{marked}{left}\n")
}

/// A number of things: `1 flow`, `2 flows`.
fn several(number: u64, one: &str) -> String {
    format!("{} {one}{}", count(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(src: &str, dst: &str, ports: Option<(u16, u16)>) -> HeavyRow {
        HeavyRow {
            tenant: "gateway".to_owned(),
            direction: "in".to_owned(),
            from: Some("client@far".to_owned()),
            src: src.parse().ok(),
            dst: dst.parse().ok(),
            protocol: Some(6),
            src_port: ports.map(|(src, _)| src),
            dst_port: ports.map(|(_, dst)| dst),
            ethertype: None,
            packets: 12_345.0,
            bits: 140e6,
            part: 0.5,
            age: 3.2,
            round_trip: None,
            pressed: None,
        }
    }

    #[test]
    fn a_flow_is_shown_in_one_line() {
        assert_eq!(row("10.0.0.1", "10.0.0.2", Some((1, 80))).headers(), "tcp 10.0.0.1:1 > 10.0.0.2:80");
        assert_eq!(row("::1", "::2", Some((1, 80))).headers(), "tcp [::1]:1 > [::2]:80");
        assert_eq!(row("::1", "::2", None).headers(), "tcp ::1 > ::2");
        let arp = HeavyRow { src: None, protocol: None, ethertype: Some(0x806), ..row("::1", "::2", None) };
        assert_eq!(arp.headers(), "EtherType 0x0806");
    }

    #[test]
    fn one_of_a_kind_is_not_called_several() {
        let row = |number| WatchedRow {
            what: "engine".to_owned(),
            measured: true,
            overloaded: false,
            top: None,
            overloads: number,
            started: number,
            ended: 0,
            marked: number,
            left: 0,
        };
        let one =
            "watched: engine: not overloaded (1 overload); 1 flow slowed down so far, 1 packet marked\n";
        let two =
            "watched: engine: not overloaded (2 overloads); 2 flows slowed down so far, 2 packets marked\n";
        assert_eq!([1, 2].map(|number| watched(&row(number))), [one, two]);
        let unmeasured = watched(&WatchedRow { measured: false, ..row(1) });
        assert!(
            unmeasured.starts_with("watched: engine: not measured, so no flow is slowed down (1 overload)")
        );
    }

    #[test]
    fn a_report_is_a_table_and_an_empty_one_says_so() {
        let flows = vec![row("10.0.0.1", "10.0.0.2", Some((1, 80)))];
        let report = HeavyReport {
            over: 2.5,
            flows,
            packets: 24_690.0,
            bits: 280e6,
            counted: [70_000, 0],
            updates: UpdatesRow { bucket_overflows: 1, counter_overflows: 70, periodic_updates: 2_500 },
            watched: None,
            held: Vec::new(),
        };
        let shown = text(&report);
        assert!(
            shown.starts_with("the last 2.5 s; all flows together: 24.7k packets/s, 280Mbps\nTENANT"),
            "{shown}"
        );
        let updates = "updates of the flow table: 1 as a bucket was full, 70 after a thousand packets of a flow, 2.5k at the end";
        assert!(shown.contains(updates), "{shown}");
        assert!(
            shown.contains("in from client@far") && shown.contains("tcp 10.0.0.1:1 > 10.0.0.2:80"),
            "{shown}"
        );
        assert!(shown.contains("50.0 %"), "{shown}");
        let held = HeldRow {
            flow: "udp 10.0.0.1:1 > 10.0.0.2:80".to_owned(),
            tenant: "far".to_owned(),
            to: "shop".to_owned(),
            host: "a".to_owned(),
            receiver_of: None,
            rate: 850_000_000,
            age: 7.2,
            left: 2.4,
        };
        let shown = text(&HeavyReport { held: vec![held], ..report.clone() });
        assert!(shown.contains("850Mbps  a            7s ago  2.4s more"), "{shown}");
        let none = HeavyReport { flows: Vec::new(), counted: [70_000, 5], ..report };
        assert!(text(&none).starts_with("no flow is heavy; all flows together: 24.7k"));
        assert!(text(&none).ends_with("5 packets of flows that found no place\n"));
    }
}
