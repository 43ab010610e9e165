//! `plimsoll status`.
//!
//! Why: an operator wants to see at a glance whether anything is wrong, and which privileges an attacker in the engine would
//! have.
//! From: the daemon's `/v1/health`.
//! Not here: counters (`live`), promises (`slo`).
//! Invariant: `--json` prints the API's answer.

use plimsoll_daemon::{Client, Health, StandbyStats, UplinkPortStats};
use serde_json::Value;

use crate::args::Ask;
use crate::failure::{Failure, print, print_json};

/// Shows the running daemon's health.
pub(crate) fn status(args: &Ask) -> Result<(), Failure> {
    let answer: Value = Client::new(&args.socket).get("/v1/health")?;
    if args.json {
        return print_json(&answer);
    }
    let health = serde_json::from_value(answer).map_err(|error| Failure::Failed(error.to_string()))?;
    print(&text(&health))
}

fn text(health: &Health) -> String {
    let mut rows = vec![
        ("status", health.status.clone()),
        ("reloads", health.generation.to_string()),
        ("uplink", if health.uplink_down { "down" } else { "up" }.to_owned()),
    ];
    rows.extend(health.standby.iter().flat_map(|both| {
        let (port, standby) = (("its port", &both.port, "port"), ("its standby", &both.standby, "standby"));
        [port, standby].map(|(row, one, place)| (row, one_port(one, (both.active == place).then_some(both))))
    }));
    let listed = |names: &[String]| (!names.is_empty()).then(|| names.join(", "));
    rows.extend(listed(&health.lost_ports).map(|names| ("lost ports", names)));
    let incomplete =
        health.incomplete_ports.iter().map(|(name, why)| ("incomplete", format!("{name}: {why}")));
    rows.extend(incomplete);
    rows.extend(listed(&health.halted_programs).map(|names| ("programs", format!("HALTED: {names}"))));
    rows.extend(listed(&health.silent_hosts).map(|names| ("silent hosts", names)));
    rows.extend(health.confinement.as_ref().map(|confinement| ("the engine", confinement.summary())));
    rows.extend(health.program_cache.as_ref().map(|cache| ("program cache", cache.summary())));
    let mut text: String = rows.iter().map(|(name, value)| format!("{name:<14}{value}\n")).collect();
    for (thread, tenants) in &health.threads {
        text += &format!("{:<14}{}\n", format!("thread {thread}"), tenants.join(", "));
    }
    text
}

/// One of the uplink's two ports; with `active`, the one that carries frames.
fn one_port(port: &UplinkPortStats, active: Option<&StandbyStats>) -> String {
    let name = port.name.as_deref().unwrap_or("lost");
    let state = if port.up { "up" } else { "down" };
    let active = active.map_or_else(String::new, |both| {
        let switches = if both.switches == 1 { "switch" } else { "switches" };
        format!(", active for {:.0} s after {} {switches}", both.active_for, both.switches)
    });
    format!("{name}: {state}{active}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_force_and_what_is_amiss_is_said() {
        let health = |confinement: &str| {
            let rest = r#""lost_ports": ["b"], "uplink_down": false, "silent_hosts": [], "generation": 3"#;
            let answer = format!(r#"{{"status": "degraded", {rest}, "confinement": {confinement}}}"#);
            text(&serde_json::from_str(&answer).expect("an answer"))
        };
        let said = health(
            r#"{"user": "uid 60977", "capabilities": [], "seccomp": true, "landlock": "on (version 7)", "broker": 7}"#,
        );
        assert!(said.contains("lost ports    b\n") && !said.contains("silent"), "{said}");
        assert!(
            said.ends_with(
                "uid 60977, no capability, seccomp on, landlock on (version 7), broker process 7\n"
            ),
            "{said}"
        );
        let both = r#"{"active": "standby", "active_for": 12.3, "switches": 1, "port": {"name": "af_packet up0", "up": false},
            "standby": {"name": "af_packet up1", "up": true}}"#;
        let answer = format!(
            r#"{{"status": "degraded", "lost_ports": [], "uplink_down": false, "standby": {both}, "silent_hosts": [],
                "generation": 3, "confinement": null}}"#
        );
        let two = text(&serde_json::from_str(&answer).expect("an answer"));
        assert!(two.contains("uplink        up\nits port      af_packet up0: down\n"), "{two}");
        assert!(two.contains("its standby   af_packet up1: up, active for 12 s after 1 switch\n"), "{two}");
        let (well, cache) = (
            r#""status": "ok", "lost_ports": [], "uplink_down": false, "silent_hosts": [], "generation": 0, "standby": null"#,
            r#"{"group": null, "no_group": "the CPU has no cat_l3", "between_programs": false, "pages_chosen": false}"#,
        );
        let answer = format!(r#"{{{well}, "confinement": null, "program_cache": {cache}}}"#);
        assert!(
            text(&serde_json::from_str(&answer).expect("an answer")).ends_with(
                "\nprogram cache not isolated (no resctrl group: the CPU has no cat_l3; pages: not chosen by colour)\n"
            )
        );
        let ended = health(
            r#"{"user": "uid 0", "capabilities": ["CAP_NET_RAW"], "seccomp": false, "landlock": "off", "broker": 7,
                "broker_ended": true}"#,
        );
        assert!(
            ended.ends_with("uid 0, CAP_NET_RAW, seccomp off, landlock off, broker process 7, ENDED\n"),
            "{ended}"
        );
    }
}
