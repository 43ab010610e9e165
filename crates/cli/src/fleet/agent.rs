//! `plimsoll fleet agent`: the host's own side of an agent.
//!
//! Why: the agent decides what is wanted; this asks the daemon for it.
//! From: the daemon's API: reload, health, promises.
//! Not here: when to ask (`fleet::Agent`).
//! Invariant: a question to a daemon that does not run is an answer in words, and no end.

use std::collections::BTreeMap;

use plimsoll_daemon::{Client, Health, Reloaded};
use plimsoll_fleet::{Agent, Composed, Local, Settings};
use plimsoll_slo::{SloReport, Verdict, causes};

use crate::args::FleetAgent;
use crate::failure::Failure;
use crate::reader;

/// Runs the agent, for ever.
pub(super) fn agent(args: &FleetAgent) -> Result<(), Failure> {
    let directory = args.at.open()?;
    let settings = Settings { host: args.host.clone(), file: args.file.clone() };
    let host = args.host.clone();
    let log = move |line: &str| eprintln!("fleet agent of {host}: {line}");
    Agent::new(settings, directory, Box::new(Daemon(Client::new(&args.socket))), Box::new(log)).run()
}

/// The host's daemon.
struct Daemon(Client);

impl Local for Daemon {
    fn check(&mut self, composed: &Composed) -> Result<(), String> {
        let process = reader::process();
        let checked =
            composed.check(&mut |sources, file| plimsoll_daemon::reader::parse(&*process, sources, file));
        let checked = checked.map_err(|errors| errors.render(false))?;
        let wrong: Vec<String> =
            plimsoll_daemon::check_programs(&checked).iter().map(ToString::to_string).collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }

    fn reload(&mut self) -> Result<(), String> {
        let reloaded: Result<Reloaded, _> = self.0.post("/v1/reload");
        reloaded.map(|_| ()).map_err(|error| error.to_string())
    }

    fn broken(&mut self, seconds: u64) -> Result<BTreeMap<String, String>, String> {
        let report: Result<SloReport, _> = self.0.get(&format!("/v1/slo?window={seconds}s"));
        let tenants = report.map_err(|error| error.to_string())?.tenants;
        let broken = tenants.into_iter().filter(|(_, tenant)| tenant.whole.verdict == Verdict::Broken);
        let cause = |tenant: &plimsoll_slo::TenantReport| {
            causes(&tenant.whole.breaches).unwrap_or_else(|| "the cause is not known".to_owned())
        };
        Ok(broken.map(|(name, tenant)| (name, cause(&tenant))).collect())
    }

    fn health(&mut self) -> Option<String> {
        match self.0.get::<Health>("/v1/health") {
            Err(error) => Some(error.to_string()),
            Ok(health) if health.status == "ok" => None,
            Ok(health) if health.lost_ports.is_empty() => Some(health.status),
            Ok(health) => Some(format!("{}: lost ports: {}", health.status, health.lost_ports.join(", "))),
        }
    }
}
