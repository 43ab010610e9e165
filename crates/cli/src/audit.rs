//! `plimsoll audit`: lists the last changes to the running daemon.
//!
//! Why: when traffic changes, an operator wants to know what has changed just before, and who asked for it.
//! From: the daemon's `/v1/audit`.
//! Not here: what is kept, and for how long (`plimsoll_daemon`).
//! Invariant: `--json` prints the API's answer.

use plimsoll_daemon::{AuditReport, Client};

use crate::args::Ask;
use crate::failure::{Failure, print, print_json};

/// Shows the changes, the oldest first.
pub(crate) fn audit(args: &Ask) -> Result<(), Failure> {
    let report: AuditReport = Client::new(&args.socket).get("/v1/audit")?;
    if args.json { print_json(&report) } else { print(&text(&report)) }
}

fn text(report: &AuditReport) -> String {
    let mut text = String::new();
    if report.forgotten > 0 {
        text.push_str(&format!("{} older changes are in the log only\n", report.forgotten));
    }
    for entry in &report.entries {
        let (number, what, who) = (entry.number, entry.what.words(), &entry.who);
        text.push_str(&format!("{number}: {what} {} ago, by {who}\n", ago(report.now - entry.at)));
        entry.detail.lines().for_each(|line| text.push_str(&format!("   {line}\n")));
    }
    if text.is_empty() {
        text.push_str("nothing has changed since the daemon's start\n");
    }
    text
}

/// A time in its two largest units: `3h 20min`.
fn ago(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60, whole % 60) {
        (0, 0, 0, seconds) => format!("{seconds}s"),
        (0, 0, minutes, seconds) => format!("{minutes}min {seconds}s"),
        (0, hours, minutes, _) => format!("{hours}h {minutes}min"),
        (days, hours, _, _) => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_daemon::{AuditEntry, Audited};

    use super::*;

    #[test]
    fn a_change_says_when_by_whom_and_what() {
        let entry = AuditEntry {
            number: 9,
            at: 100.0,
            what: Audited::Reloaded,
            who: "user 0, process 7".into(),
            detail: "reload 2\n~ tenant shop: max 1Gbps -> 2Gbps".into(),
        };
        let report = AuditReport { now: 12_100.5, forgotten: 8, entries: vec![entry] };
        assert_eq!(
            text(&report),
            "8 older changes are in the log only\n9: reloaded 3h 20min ago, by user 0, process 7\n   reload 2\n   ~ tenant \
             shop: max 1Gbps -> 2Gbps\n"
        );
        assert!(text(&AuditReport::default()).contains("nothing has changed"));
    }

    #[test]
    fn a_time_has_two_units() {
        let times = [(3.9, "3s"), (61.0, "1min 1s"), (90_000.0, "1d 1h"), (-1.0, "0s")];
        times.iter().for_each(|&(seconds, words)| assert_eq!(ago(seconds), words));
    }
}
