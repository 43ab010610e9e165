//! `plimsoll explain`.
//!
//! Why: the question "why is it slow?" gets an answer with names and figures.
//! From: the daemon's departure log, or, with `--policy`, the policy alone.
//! Not here: finding the answer (`daemon::explain`, `policy::explain`).
//! Invariant: the parts of the time add up to the total; these times and the counts are means for one packet.

use std::fmt::Write;

use plimsoll_daemon::{
    ActivePort, Client, ClientError, Explanation, Served, TimeSpent, protocol_number, query,
};

use crate::args::Explain;
use crate::failure::{Failure, print, print_json};
use crate::reader;
use crate::show::{count, drops, micros, rate};

/// Explains packets.
pub(crate) fn explain(args: &Explain) -> Result<(), Failure> {
    let filter = args.filter.join(" ");
    if let Some(policy) = &args.policy {
        return by_policy(&policy.display().to_string(), &filter, args.ask.json);
    }
    let path = format!("/v1/explain?filter={}", query(&filter));
    let explanation: Explanation = match Client::new(&args.ask.socket).get(&path) {
        Err(ClientError::Refused(why)) => return Err(Failure::Wrong(why)),
        other => other?,
    };
    if args.ask.json { print_json(&explanation) } else { print(&text(&explanation)) }
}

fn by_policy(file: &str, filter: &str, json: bool) -> Result<(), Failure> {
    let checked = reader::load(file).map_err(|errors| Failure::Policy(Box::new(errors)))?;
    let named = |word: &str| match protocol_number(word) {
        Some(_) => format!("protocol={word}"),
        None => word.to_owned(),
    };
    let filter: Vec<String> = filter.split_whitespace().map(named).collect();
    let filter = plimsoll_policy::Filter::parse(&checked.program, &filter.join(" "));
    let filter = filter.map_err(|error| Failure::Wrong(error.to_string()))?;
    let explanation = plimsoll_policy::explain(&checked.program, &filter);
    if json { print_json(&explanation) } else { print(&format!("{}\n", explanation.to_string().trim_end())) }
}

fn text(explanation: &Explanation) -> String {
    let mut text = format!("class   {}\n", explanation.class);
    let limits: Vec<String> =
        explanation.limits.iter().map(|(name, bits)| format!("{name} ({})", rate(*bits as f64))).collect();
    let limits = if limits.is_empty() { "none".to_owned() } else { limits.join(", ") };
    // Writing to a string cannot fail. Without ranks the packets are of several tenants, each with limits of its own.
    if !explanation.ranks.is_empty() || !explanation.limits.is_empty() {
        let _ = writeln!(text, "limits  {limits}");
    }
    for (index, step) in explanation.ranks.iter().enumerate() {
        let head = if index == 0 { "ranks" } else { "" };
        let strict = step.rate.map_or_else(String::new, |bits| format!(", at {}", rate(bits as f64)));
        let _ =
            writeln!(text, "{head:<8}{} in {} ({}): {}{strict}", step.child, step.node, step.kind, step.rank);
    }
    if !explanation.turned_away.is_empty() {
        let _ = writeln!(
            text,
            "dropped {} (addresses that are not the tenant's)",
            drops(&explanation.turned_away)
        );
    }
    let (marked, dropped) = explanation.signalled;
    if marked + dropped > 0 {
        let (marked, dropped) = (count(marked), count(dropped));
        let _ = writeln!(
            text,
            "short   {marked} packets of the class marked and {dropped} dropped: they had waited too long"
        );
    }
    if let Some(active) = &explanation.uplink {
        let _ = writeln!(text, "uplink  {}", uplink(active));
    }
    for (index, flow) in explanation.slowed_down.iter().enumerate() {
        let head = if index == 0 { "slowed" } else { "" };
        let _ = writeln!(text, "{head:<8}{flow}");
    }
    let Some(time) = &explanation.time else {
        let _ = writeln!(
            text,
            "\nnone of the last {} packets that left matched",
            count(explanation.logged as u64)
        );
        return text;
    };
    let _ = writeln!(
        text,
        "\nthe last {} packets that matched, of {} that left; times and counts are means for one packet:",
        count(explanation.matched as u64),
        count(explanation.logged as u64),
    );
    spent(&mut text, time, explanation.matched);
    text
}

/// The uplink's port that is active now, by which the packets leave that are for no tenant of this host.
fn uplink(active: &ActivePort) -> String {
    let name = active.name.as_deref().unwrap_or("lost");
    let standby = if active.place == "standby" { ", the standby" } else { "" };
    let down = if active.down { ": down, so packets wait" } else { "" };
    format!("{name}{standby}{down}")
}

/// Shows where time was spent. The counts are sums over `matched` packets, and are shown as means for one, like the times.
fn spent(text: &mut String, time: &TimeSpent, matched: usize) {
    let share = |part: f64| if time.total > 0.0 { part / time.total * 100.0 } else { 0.0 };
    let mean = |sum: u64| sum as f64 / matched.max(1) as f64;
    let whole = format!("from its doorbell to the port (the longest {})", micros(time.longest));
    let _ = writeln!(text, "  {:>8}  100%  {whole}; of that:", micros(time.total));
    let mut line = |what: &str, part: f64, served: &[Served]| {
        let _ = writeln!(text, "  {:>8}  {:>3.0}%  {what}", micros(part), share(part));
        for one in served.iter().take(5) {
            let (packets, bytes) = (mean(one.packets), count(mean(one.bytes).round() as u64));
            let _ =
                writeln!(text, "{:18}{} of {}: {packets:.1} packets, {bytes}B", "", one.class, one.tenant);
        }
    };
    line("behind earlier packets of its own flow", time.own_flow, &[]);
    for limit in &time.limits {
        let held = count(limit.packets as u64);
        line(
            &format!(
                "at limit {} ({held} of the {} waited there longest); served meanwhile:",
                limit.limit,
                count(matched as u64)
            ),
            limit.time,
            &limit.served,
        );
    }
    for node in &time.nodes {
        line(&format!("at {}; served meanwhile:", node.node), node.time, &node.served);
    }
    line("on the wire, in pacing, and in the engine", time.rest, &[]);
}

#[cfg(test)]
mod tests {
    use plimsoll_daemon::{LimitTime, NodeTime, RankNow};

    use super::*;

    #[test]
    fn says_where_the_time_went_and_who_was_served() {
        let served = Served { class: "batch".into(), tenant: "batch".into(), packets: 40, bytes: 60_000 };
        let time = TimeSpent {
            total: 100.0,
            longest: 250.0,
            own_flow: 10.0,
            limits: vec![LimitTime { limit: "wan".into(), time: 50.0, packets: 5, served: vec![] }],
            nodes: vec![NodeTime { node: "root".into(), time: 30.0, served: vec![served] }],
            rest: 10.0,
        };
        let explanation = Explanation {
            class: "shop".into(),
            ranks: vec![RankNow {
                node: "root".into(),
                kind: "rate_share".into(),
                child: "shop".into(),
                rank: 7,
                rate: Some(400_000_000),
            }],
            limits: vec![("wan".into(), 500_000_000)],
            turned_away: [("spoofed_arp".to_owned(), 12)].into(),
            signalled: (40, 2),
            uplink: Some(ActivePort {
                name: Some("af_packet up1".into()),
                place: "standby".into(),
                down: false,
            }),
            slowed_down: Vec::new(),
            matched: 20,
            logged: 65_536,
            time: Some(time),
        };
        let text = text(&explanation);
        for expected in [
            "class   shop",
            "limits  wan (500Mbps)",
            "ranks   shop in root (rate_share): 7, at 400Mbps",
            "dropped spoofed_arp 12 (addresses that are not the tenant's)",
            "short   40 packets of the class marked and 2 dropped: they had waited too long",
            "uplink  af_packet up1, the standby\n",
            "the last 20 packets that matched, of 65.5k that left; times and counts are means for one packet:",
            "   100us  100%  from its doorbell to the port (the longest 250us); of that:",
            "    50us   50%  at limit wan (5 of the 20 waited there longest)",
            "batch of batch: 2.0 packets, 3kB",
        ] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
    }

    #[test]
    fn the_active_port_is_named_and_whether_it_carries() {
        let of = |name: Option<&str>, place: &str, down| {
            uplink(&ActivePort { name: name.map(str::to_owned), place: place.to_owned(), down })
        };
        assert_eq!(of(Some("af_packet up0"), "port", false), "af_packet up0");
        assert_eq!(of(Some("af_xdp up0"), "port", true), "af_xdp up0: down, so packets wait");
        assert_eq!(of(None, "standby", true), "lost, the standby: down, so packets wait");
    }
}
