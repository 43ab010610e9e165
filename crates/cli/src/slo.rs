//! `plimsoll slo`: shows whether each tenant's promise held, and the cause where it did not.
//!
//! Why: an operator must be able to answer a tenant that complains: the promise held, or this is why not.
//! From: the daemon's windows (`plimsoll_daemon::SloReport`).
//! Not here: judging.
//! Invariant: exit code 1 when a promise was broken, and 0 when all held.

use comfy_table::CellAlignment::{self, Left, Right};
use plimsoll_daemon::Client;
use plimsoll_slo::{Judged, Promise, Quantiles, SloReport, TenantReport, Verdict, causes};

use crate::args::Slo;
use crate::failure::{Failure, print, print_json};
use crate::show::{count, micros, rate, table};

/// Asks the daemon and shows its report; fails when a promise was broken.
pub(crate) fn slo(args: &Slo) -> Result<(), Failure> {
    let nanos = args.window.as_u64();
    let mut report: SloReport = match Client::new(&args.ask.socket).get(&format!("/v1/slo?window={nanos}ns"))
    {
        Err(plimsoll_daemon::ClientError::Refused(why)) => return Err(Failure::Wrong(why)),
        other => other?,
    };
    for name in &args.tenant {
        if !report.tenants.contains_key(name) {
            let known: Vec<&str> = report.tenants.keys().map(String::as_str).collect();
            return Err(Failure::Wrong(format!(
                "there is no tenant `{name}`; there are {}",
                known.join(", ")
            )));
        }
    }
    if !args.tenant.is_empty() {
        report.tenants.retain(|name, _| args.tenant.contains(name));
    }
    if args.ask.json {
        print_json(&report)?;
    } else {
        print(&text(&report, args.each))?;
    }
    let broken = |tenant: &TenantReport| tenant.whole.verdict == Verdict::Broken;
    if report.tenants.values().any(broken) { Err(Failure::Said) } else { Ok(()) }
}

fn text(report: &SloReport, each: bool) -> String {
    if report.span == 0.0 {
        return "the daemon has just started: ask again in a second\n".to_owned();
    }
    let unit = if report.by_minute { "minutes" } else { "seconds" };
    let heads =
        ["tenant", "promise", "kept", "sent", "received", "out p99", "NIC p99", "in p99", "lost", "cause"];
    let alignments: [CellAlignment; 10] = [Left, Left, Right, Right, Right, Right, Right, Right, Right, Left];
    let mut table = table(&heads, &alignments);
    for (name, tenant) in &report.tenants {
        let kept = format!("{} of {}", tenant.kept, tenant.seen);
        table.add_row(row(name, &kept, &tenant.whole));
        for window in tenant.windows.iter().filter(|_| each) {
            let at = format!("  {:.0}s", window.from);
            table.add_row(row(&at, "", window));
        }
    }
    let mut text = format!("the last {:.0}s, by {unit}\n{table}\n", report.span);
    for (name, tenant) in &report.tenants {
        for breach in &tenant.whole.breaches {
            text.push_str(&format!("\n{name} {}\n", breach.words()));
        }
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let promised: Vec<String> =
        report.tenants.iter().map(|(name, tenant)| format!("{name}: {}", words(&tenant.promise))).collect();
    text.push_str(&format!("\n{}\n", promised.join("\n")));
    text
}

fn row(name: &str, kept: &str, judged: &Judged) -> [String; 10] {
    let delay = |seen: &Quantiles| if seen.count == 0 { "-".to_owned() } else { micros(seen.p99) };
    [
        name.to_owned(),
        judged.verdict.words().to_owned(),
        kept.to_owned(),
        rate(judged.sent),
        rate(judged.received),
        delay(&judged.egress),
        delay(&judged.nic),
        delay(&judged.engine),
        count(judged.lost_out + judged.lost_in),
        causes(&judged.breaches).unwrap_or_else(|| "-".to_owned()),
    ]
}

/// A promise in one line: `200Mbps to 800Mbps; p99 100us`.
fn words(promise: &Promise) -> String {
    let range = |min: Option<u64>, max: Option<u64>| match (min, max) {
        (None, None) => None,
        (Some(min), None) => Some(format!("{} at least", rate(min as f64))),
        (None, Some(max)) => Some(format!("{} at most", rate(max as f64))),
        (Some(min), Some(max)) => Some(format!("{} to {}", rate(min as f64), rate(max as f64))),
    };
    let (out, inward) = (range(promise.out_min, promise.out_max), range(promise.in_min, promise.in_max));
    let mut parts = Vec::new();
    if out == inward {
        parts.extend(out.map(|range| format!("{range} each way")));
    } else {
        parts.extend(out.map(|range| format!("{range} out")));
        parts.extend(inward.map(|range| format!("{range} in")));
    }
    parts.extend(promise.delay.iter().map(|target| format!("{} {}", target.percentile, micros(target.most))));
    if parts.is_empty() { "nothing promised".to_owned() } else { parts.join("; ") }
}

#[cfg(test)]
mod tests {
    use plimsoll_slo::{Breach, Cause};

    use super::*;

    fn tenant(verdict: Verdict, breaches: Vec<Breach>) -> TenantReport {
        let whole = Judged { verdict, breaches, sent: 90e6, ..Judged::default() };
        TenantReport {
            whole: whole.clone(),
            kept: 1,
            seen: 1,
            windows: vec![whole],
            ..TenantReport::default()
        }
    }

    #[test]
    fn a_table_lines_up_and_names_the_cause() {
        let breach = Breach {
            what: "lost on the way out".into(),
            detail: "flow_full 7".into(),
            cause: Cause::Itself,
            why: "it offered 90Mbps of at most 60Mbps".into(),
            who: None,
        };
        let tenants = [
            ("shop".to_owned(), tenant(Verdict::Held, Vec::new())),
            ("a-longer-name".to_owned(), tenant(Verdict::Beyond, vec![breach])),
        ];
        let report = SloReport { span: 60.0, by_minute: false, tenants: tenants.into() };
        let text = text(&report, false);
        let lines: Vec<&str> = text.lines().collect();
        let at = |line: &str, word: &str| line.find(word).expect(word);
        assert_eq!(at(lines[2], "beyond it"), at(lines[1], "PROMISE"), "{text}");
        assert_eq!(at(lines[3], "held"), at(lines[1], "PROMISE"), "{text}");
        assert_eq!(at(lines[2], "itself"), at(lines[1], "CAUSE"), "{text}");
        assert!(
            text.contains(
                "a-longer-name lost on the way out: flow_full 7; it offered 90Mbps of at most 60Mbps"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_promise_is_said_as_the_policy_states_it() {
        let both =
            Promise { out_min: Some(2_000_000_000), in_min: Some(2_000_000_000), ..Promise::default() };
        assert_eq!(words(&both), "2Gbps at least each way");
        assert_eq!(
            words(&Promise { in_max: Some(1_000_000), ..both }),
            "2Gbps at least out; 2Gbps to 1Mbps in"
        );
        assert_eq!(words(&Promise::default()), "nothing promised");
    }
}
