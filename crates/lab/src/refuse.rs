//! Refuses scenarios that can be simulated but not run live, and says why.
//!
//! Why: a file for the simulator may ask for more than one machine has; the user learns that before anything is built.
//! From: `docs/scenarios.md`, features marked "in virtual time".
//! Not here: mistakes in the file (`scenario` finds them).
//! Invariant: each refusal names the part of the file, and the command that can run it.

use std::fs;

use plimsoll_scenario::{
    Congestion, Faults, KeyValueSizes, Kind, Scenario, Setting, System, TcpSettings, Workload,
};
use plimsoll_units::Bytes;

use crate::error::LabError;
use crate::traffic::socket;
use crate::world::{fleet, kernels};

/// Fails when the scenario has links, machines or workloads that exist only in virtual time.
pub(crate) fn other_worlds(scenario: &Scenario) -> Result<(), LabError> {
    let only_sim = |what: &str| {
        Err(LabError::Scenario(format!(
            "{what}; a lab is one host with its uplink, or several around one switch: run it with `plimsoll sim`"
        )))
    };
    let several = fleet::is_fleet(scenario);
    if let Some(what) = several.then(|| fleet::refuse(scenario)).flatten() {
        return only_sim(&what);
    }
    if !(several || scenario.links.is_empty() && scenario.switches.is_empty()) {
        return only_sim("the file has links or switches of its own");
    }
    if scenario.timeline.iter().any(|change| change.setting != Setting::Policy) {
        return only_sim("the file has a timeline that changes more than `policy`");
    }
    if scenario.one_world && !scenario.timeline.is_empty() {
        return only_sim("systems take turns in one world, and the file has a timeline");
    }
    if let Some(what) = fault(scenario, several) {
        return only_sim(&what);
    }
    if let Some(workload) = scenario.workloads.iter().find(|workload| workload.kind.is_virtual()) {
        return only_sim(&format!("workload `{}` is of kind `{}`", workload.name, workload.kind.name()));
    }
    let odd = |workload: &&Workload| match workload.kind {
        Kind::Udp { burst, buffer, claims, .. } => burst > Bytes::ZERO || buffer > Bytes::ZERO || claims > 0,
        _ => false,
    };
    if let Some(workload) = scenario.workloads.iter().find(odd) {
        return only_sim(&format!("workload `{}` has a `burst`, a `buffer` or `claims`", workload.name));
    }
    if let Some(tenant) = scenario.tenants.iter().find(|tenant| tenant.homes.len() > 1) {
        return only_sim(&format!("tenant `{}` lives on several hosts", tenant.name));
    }
    let tuned = |workload: &&Workload| workload.tcp != TcpSettings::default();
    if let Some(workload) = scenario.workloads.iter().find(tuned) {
        return only_sim(&format!("workload `{}` has `tcp` settings", workload.name));
    }
    let etc =
        |workload: &&Workload| matches!(workload.kind, Kind::Memcached { sizes: KeyValueSizes::Etc, .. });
    if let Some(workload) = scenario.workloads.iter().find(etc) {
        return only_sim(&format!("workload `{}` has a mix of sizes", workload.name));
    }
    if let Some(workload) = scenario.workloads.iter().find(|one| one.through.is_some()).filter(|_| !several) {
        return only_sim(&format!("workload `{}` goes through a tenant", workload.name));
    }
    if let Some((one, other)) = kernels::divided(scenario) {
        let (one, other) = (&one.name, &other.name);
        return only_sim(&format!("workloads `{one}` and `{other}` have the same ends, and take two ways"));
    }
    congestion_controls(scenario, socket::has_congestion_control)?;
    let to_tenant = |workload: &&Workload| scenario.tenant_address(&workload.to).is_some();
    match scenario.workloads.iter().find(to_tenant).filter(|_| !several) {
        Some(workload) => only_sim(&format!("workload `{}` sends to a tenant", workload.name)),
        None => Ok(()),
    }
}

/// Fails when a workload's TCP needs a congestion control that the kernel lacks.
fn congestion_controls(scenario: &Scenario, has: impl Fn(Congestion) -> bool) -> Result<(), LabError> {
    let lacks =
        |workload: &&Workload| workload.kind.is_tcp() && !has(workload.congestion.unwrap_or_default());
    let Some(workload) = scenario.workloads.iter().find(lacks) else { return Ok(()) };
    let name = workload.congestion.unwrap_or_default().of_linux();
    let known = fs::read_to_string(AVAILABLE).unwrap_or_default();
    Err(LabError::Scenario(format!(
        "workload `{}` needs the congestion control `{name}`, which this kernel lacks; it has: {}. Load its module \
         (`modprobe tcp_{name}`), or state another `congestion`",
        workload.name,
        known.trim()
    )))
}

/// Where the kernel lists the congestion controls that it has loaded.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// A fault in the file that cannot be produced live, if there is one.
fn fault(scenario: &Scenario, several: bool) -> Option<String> {
    let faults = &scenario.faults;
    if let Some(stall) = faults.stalls.first() {
        return Some(format!("`stalled`: the kernel behind tenant `{}`'s device always reads", stall.tenant));
    }
    if let Some(step) = faults.clocks.first() {
        return Some(format!("`clock`: host `{}` has the whole machine's clock", step.host));
    }
    let mut restarts: Vec<_> = faults.restarts.iter().collect();
    restarts.sort_by_key(|restart| (&restart.host, restart.at));
    let touch =
        restarts.windows(2).find(|two| two[0].host == two[1].host && two[0].at + two[0].gap >= two[1].at);
    if let Some(two) = touch {
        return Some(format!("`restart`: two restarts of host `{}` overlap", two[0].host));
    }
    let any = *faults != Faults::default();
    (any && (!several || scenario.one_world)).then(|| match several {
        true => "`faults` cannot be combined with `one_world`".to_owned(),
        false => "the file has `faults`, which need several hosts".to_owned(),
    })
}

/// The systems that were asked for and can run live, and a note for each other one.
pub(crate) fn systems<'s>(scenario: &'s Scenario, asked: &[String]) -> (Vec<&'s System>, Vec<String>) {
    let chosen = |system: &&System| asked.is_empty() || asked.contains(&system.name);
    let fleet = fleet::is_fleet(scenario);
    let why = |system: &System| match fleet.then(|| fleet::not_here(scenario, system)).flatten() {
        None if system.kind.is_model() => Some("a model"),
        why => why,
    };
    let (mut systems, mut notes) = (Vec::new(), Vec::new());
    for system in scenario.systems.iter().filter(chosen) {
        match why(system) {
            Some(why) => notes.push(format!("{}: {why}; it runs with `plimsoll sim` only", system.name)),
            None => systems.push(system),
        }
    }
    (systems, notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_scenario::Form;
    use std::path::Path;

    fn scenario(workload: &str) -> Scenario {
        let text = format!(
            "{{name: t, rate: 10Mbps, duration: 1s, systems: [fifo], tenants: {{a: {{}}}}, workloads: {{up: {{tenant: a, {workload}}}}}}}"
        );
        Scenario::parse(&text, "t.yaml", Path::new(""), Form::Full)
            .unwrap_or_else(|errors| panic!("{}", errors.render(false)))
    }

    #[test]
    fn a_congestion_control_that_the_kernel_lacks_is_refused() {
        let no_dctcp = |congestion| congestion != Congestion::Dctcp;
        let refused = congestion_controls(&scenario("kind: bulk, congestion: dctcp"), no_dctcp);
        let said = refused.expect_err("it lacks it").to_string();
        assert!(said.contains("workload `up` needs the congestion control `dctcp`"), "{said}");
        assert!(said.contains("modprobe tcp_dctcp"), "{said}");
        assert!(congestion_controls(&scenario("kind: bulk, congestion: bbr"), no_dctcp).is_ok());
    }

    #[test]
    fn without_a_name_it_is_cubic_and_datagrams_need_none() {
        let no_cubic = |congestion| congestion != Congestion::Cubic;
        assert!(congestion_controls(&scenario("kind: bulk"), no_cubic).is_err());
        assert!(congestion_controls(&scenario("kind: probe"), no_cubic).is_ok());
    }
}
