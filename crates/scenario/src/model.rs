//! A scenario that has been read and checked.
//!
//! Why: the live lab and the simulator must run the same thing, so both take this model and read no YAML.
//! From: `docs/scenarios.md`, which explains each key to operators.
//! Not here: reading it (`read`), its results (`results`), how a world is built (`lab`).
//! Invariant: every name in here refers to something that exists; times fit into `duration`; nothing is empty
//! that a run needs.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use plimsoll_document::Sources;
use plimsoll_policy::Mark;
use plimsoll_units::{BitRate, Span};

use crate::expect::Expectation;
use crate::fault::Faults;
use crate::lateness::Lateness;
use crate::network::{Control, Host, Link, LoadBalancing};
use crate::paper::Paper;
use crate::press::PressModel;
use crate::programs::ModuleFile;
use crate::sections::PolicySections;
use crate::system::System;
use crate::workload::{Kind, Workload};
use crate::{Errors, Problem};

/// One scenario: what to run, on which systems, what to measure and what to expect.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Short name, which heads tables and reports: `noisy-neighbour`.
    pub name: String,
    /// A description, in a few sentences.
    pub about: String,
    /// Rate of the uplink, imposed by the engine or by the system compared with it.
    pub rate: BitRate,
    /// Largest IP packet on every link.
    pub mtu: u32,
    /// Length of each run.
    pub duration: Span,
    /// How often the whole list of systems is run, one after the other; expectations compare medians.
    pub pairs: u32,
    /// Whether, live, all systems take turns in one world, each for `duration`; else each run has a world of its own.
    pub one_world: bool,
    /// Seed of everything random (arrival times, payloads).
    pub seed: u64,
    /// The most by which a host is late to take in a packet of TCP, in virtual time.
    pub jitter: Span,
    /// How late sleeps end, in virtual time: those of HTB's timer, and of the engine's thread.
    pub wake: Lateness,
    /// Machines; live there is one, or several around one switch.
    pub hosts: Vec<Host>,
    /// Nodes that only forward packets; live there is at most one.
    pub switches: Vec<String>,
    /// Links between hosts, switches and destinations. Without any, each host is behind a link of `rate`, with
    /// every destination at its other end.
    pub links: Vec<Link>,
    /// Which of several equal ways a packet takes, in virtual time.
    pub load_balancing: LoadBalancing,
    /// Bytes that an overlay adds to each packet between hosts, in virtual time; live it is always [`OVERLAY_HEADERS`].
    pub overlay: u32,
    /// How receivers control their senders' rates; not at all without.
    pub control: Option<Control>,
    /// The tenants, each with a vNIC, in the order of the file.
    pub tenants: Vec<Tenant>,
    /// Places beyond the uplink, each with an address of its own.
    pub destinations: Vec<Destination>,
    /// Whether tenants use segmentation offload; off, so that each packet is scheduled alone, unless asked for.
    pub offload: bool,
    /// The systems to compare, in the order of the file.
    pub systems: Vec<System>,
    /// The tenants' traffic.
    pub workloads: Vec<Workload>,
    /// Values of the file that are varied, by their path: what is read is one of the points.
    pub sweep: Vec<(String, Vec<String>)>,
    /// Changes to the policy during a run, in the order of their moments.
    pub timeline: Vec<Change>,
    /// Faults to inject.
    pub faults: Faults,
    /// How backpressure differs in experiments, in virtual time.
    pub press_model: PressModel,
    /// How finely to measure.
    pub measure: Measure,
    /// Expectations that the results must meet.
    pub expect: Vec<Expectation>,
    /// The experiment of a paper that it repeats, if it does.
    pub paper: Option<Paper>,
    /// Whether it can be run live; else it is for virtual time alone.
    pub live: bool,
    /// Whether it is read for virtual time.
    pub virtual_time: bool,
    /// The modules of tenants' programs that have been read, by their path in the policy: [`Scenario::read_modules`].
    pub modules: BTreeMap<PathBuf, ModuleFile>,
    /// The policy's sections as the file has them.
    pub(crate) policy: PolicySections,
    /// Whether this is the short form that the test suite runs.
    pub short: bool,
    /// Factor of every moment of the file in the short form; 1 in the full form.
    pub time: f64,
    /// The folder of the file, from which paths inside start.
    pub folder: PathBuf,
    /// The file, and the policy files that it names.
    pub(crate) sources: Sources,
}

impl Scenario {
    /// The largest IP packet of a tenant in virtual time: what an overlay leaves of `mtu`.
    #[must_use]
    pub fn inner_mtu(&self) -> u32 {
        self.mtu.saturating_sub(self.overlay).max(1)
    }

    /// Fails when it lacks one of these systems.
    ///
    /// # Errors
    /// A message that names the system that it lacks, and those that it has.
    pub fn has_systems(&self, names: &[String]) -> Result<(), String> {
        let unknown = names.iter().find(|name| !self.systems.iter().any(|system| system.name == **name));
        let Some(name) = unknown else { return Ok(()) };
        let known: Vec<&str> = self.systems.iter().map(|system| system.name.as_str()).collect();
        Err(format!("there is no system `{name}`; the scenario has {}", known.join(", ")))
    }

    /// A problem that only shows when the world is built, as the scenario's errors.
    #[must_use]
    pub fn wrong(&self, problem: Problem) -> Errors {
        Errors::new(vec![problem], self.sources.clone())
    }
}

/// Bytes that Geneve and VXLAN add to a tenant's packet over IPv4: outer IP and UDP, the tunnel's header, and the tenant's
/// Ethernet header.
pub const OVERLAY_HEADERS: u32 = 20 + 8 + 8 + 14;

/// One change of the policy while a run goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Time of the change, from the start of the run.
    pub at: Span,
    /// A limit, a class or node by its path or the last part of it, or a system.
    pub name: String,
    /// Its new value.
    pub setting: Setting,
    /// Where the name stands.
    pub place: Mark,
}

/// A setting that can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// A limit's rate.
    Limit(BitRate),
    /// The weight of a class or node.
    Weight(u32),
    /// The rate of a child of a `rate_share` node.
    Rate(BitRate),
    /// The policy of the system of this name, as by a reload.
    Policy,
}

/// A place beyond the uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Its name in workloads.
    pub name: String,
    /// Its address inside [`NETWORK`], as policies match it.
    pub address: Ipv4Addr,
}

/// The network of all addresses of a scenario: destination `n` is 10.200.0.n and tenant `n` is 10.200.1.n,
/// counted from 1 in the order of the file, unless the file gives a destination another address. From the 251st vNIC
/// on they are 10.200.128.1 and up.
pub const NETWORK: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 200, 0, 0), 16);

/// A tenant and what it is promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The operator's name.
    pub name: String,
    /// Its address inside [`NETWORK`]; of the first of its vNICs where it has several.
    pub address: Ipv4Addr,
    /// The machines that it lives on, with an address on each; live it is on one.
    pub homes: Vec<Home>,
    /// Its guaranteed rate.
    pub min: Option<BitRate>,
    /// The rate that it never exceeds.
    pub max: Option<BitRate>,
    /// Its share of what the minima leave.
    pub weight: u32,
    /// Whether the file states its weight.
    pub weighted: bool,
    /// Its family, where one key stands for many (`repeat`).
    pub family: Option<String>,
    /// The core of its host that it runs on, shared with those that name the same; its own without.
    pub core: Option<String>,
    /// Whether it forwards packets that are not its own, as a gateway.
    pub forwards: bool,
    /// ECN of its TCP, with Linux's numbers: 0 never, 1 asked for and accepted, 2 accepted only. Without it the world's own
    /// default holds.
    pub tcp_ecn: Option<u8>,
}

impl Tenant {
    /// Its weight, if the file states it: among the senders to a receiver, who else share by `max`.
    #[must_use]
    pub fn stated_weight(&self) -> Option<u32> {
        self.weighted.then_some(self.weight)
    }
}

/// One of a tenant's vNICs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// The machine.
    pub host: String,
    /// Its address there.
    pub address: Ipv4Addr,
}

impl Scenario {
    /// The time between two samples of traces: as the file states it, else a 500th of the run.
    #[must_use]
    pub fn series_interval(&self) -> Span {
        let default = Span::ns(self.duration.as_u64() / 500).max(LEAST_INTERVAL);
        self.measure.interval.unwrap_or(default)
    }

    /// Tenants as tables show them, those of one family under its name.
    pub(crate) fn shown_tenants(&self) -> Vec<&str> {
        families(self.tenants.iter().map(|tenant| (tenant.name.as_str(), tenant.family.as_deref())))
    }

    /// The workloads that ask for answers, each with one that stands for it.
    pub(crate) fn shown_asking(&self) -> Vec<(&str, &Workload)> {
        self.shown_workloads(Kind::has_latency)
    }

    /// The workloads of some kinds, each with one that stands for it.
    pub(crate) fn shown_workloads(&self, of: fn(&Kind) -> bool) -> Vec<(&str, &Workload)> {
        let asking = || self.workloads.iter().filter(|workload| of(&workload.kind));
        let shown = families(asking().map(|workload| (workload.name.as_str(), workload.family.as_deref())));
        let one = |name: &str| {
            asking().find(|workload| workload.name == name || workload.family.as_deref() == Some(name))
        };
        shown.into_iter().filter_map(|name| Some((name, one(name)?))).collect()
    }

    /// The families that `repeat` made, and the number of members.
    pub(crate) fn families(&self) -> Vec<(String, u64)> {
        let mut families: Vec<(String, u64)> = Vec::new();
        let tenants = self.tenants.iter().filter_map(|tenant| tenant.family.as_ref());
        for family in tenants.chain(self.workloads.iter().filter_map(|workload| workload.family.as_ref())) {
            match families.iter_mut().find(|(name, _)| name == family) {
                Some((_, count)) => *count += 1,
                None => families.push((family.clone(), 1)),
            }
        }
        families
    }

    /// Tenants and workloads of one family; nothing for a name that is none.
    pub(crate) fn family(&self, name: &str) -> Vec<&str> {
        let tenants = self.tenants.iter().map(|tenant| (tenant.name.as_str(), &tenant.family));
        let workloads = self.workloads.iter().map(|workload| (workload.name.as_str(), &workload.family));
        let members = tenants.chain(workloads).filter(|(_, family)| family.as_deref() == Some(name));
        members.map(|(member, _)| member).collect()
    }

    /// The host of the gateway that a workload goes through, if it does.
    pub(crate) fn gateway_host(&self, workload: &Workload) -> Option<&str> {
        let gateway = self.tenants.iter().find(|tenant| Some(&tenant.name) == workload.through.as_ref())?;
        gateway.homes.first().map(|home| home.host.as_str())
    }

    /// Where a tenant lives; `None` for a name that is none.
    #[must_use]
    pub fn tenant_address(&self, name: &str) -> Option<Ipv4Addr> {
        self.tenants.iter().find(|tenant| tenant.name == name).map(|tenant| tenant.address)
    }

    /// Destinations that tables show: all but the first, unless there are many.
    pub(crate) fn shown_destinations(&self) -> impl Iterator<Item = &str> {
        let few = self.destinations.len() <= MOST_SHOWN;
        self.destinations.iter().skip(1).filter(move |_| few).map(|place| place.name.as_str())
    }

    /// Where a destination is; `None` for a name that is none.
    #[must_use]
    pub fn destination_address(&self, name: &str) -> Option<Ipv4Addr> {
        self.destinations.iter().find(|place| place.name == name).map(|place| place.address)
    }
}

/// The shortest time between two samples of traces.
pub(crate) const LEAST_INTERVAL: Span = Span::micros(1);

/// Destinations of a scenario whose tables show each of them.
const MOST_SHOWN: usize = 4;

/// Names, but one for each family.
fn families<'a>(names: impl Iterator<Item = (&'a str, Option<&'a str>)>) -> Vec<&'a str> {
    let mut shown = Vec::new();
    for (name, family) in names {
        let name = family.unwrap_or(name);
        if shown.last() != Some(&name) && !shown.contains(&name) {
            shown.push(name);
        }
    }
    shown
}

/// How finely to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measure {
    /// Throughput is counted in windows of this length.
    pub window: Span,
    /// Where the part of the run begins that tables and expectations speak of when they name no window.
    pub from: Span,
    /// Where that part ends.
    pub to: Span,
    /// The time between two samples of `--series`, where the file states one.
    pub interval: Option<Span>,
    /// Whether CPU time is measured.
    pub cpu: bool,
    /// Whether the moment at which each packet crossed the uplink is kept.
    pub gaps: bool,
    /// Whether the packets that engines hold are counted.
    pub held: bool,
    /// Whether each packet's wait on the way in is kept.
    pub ingress: bool,
    /// Whether each packet's wait on the way out is kept.
    pub egress: bool,
}
