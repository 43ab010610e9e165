//! From a policy file's port to an open one.
//!
//! Why: the language says where a port is, the crate `ports` knows how it is made.
//! From: `docs/policy.md`, "ports".
//! Not here: what is done with it (`engine`).
//! Invariant: what fails names the port, the place and the way out.

mod wanted;

use std::collections::BTreeMap;

use plimsoll_nic::Config as EngineConfig;
use plimsoll_policy::{Checked, Config, Netns, Port as PortSpec, Program, TenantConfig};
use plimsoll_ports::netns::NetnsRef;
use plimsoll_ports::{Kept, Port, PortError, TapConfig, kept};
use plimsoll_units::{Bytes, Span};

pub(crate) use wanted::Wanted;

use crate::broker::Broker;
use crate::engine::{FleetMap, LaneSpec, Mac, Quota};

/// A port of the policy that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The port's own trouble.
    #[error("{whose}: {source}")]
    Port {
        /// `the uplink` or `tenant shop`.
        whose: String,
        /// What is wrong.
        source: PortError,
    },
    /// A port for tests only.
    #[error(
        "{whose}: a `memory` port has its other end inside a program, which `plimsoll run` has not; use a tap, vhost_user, vnic, af_packet, af_xdp or pcap port"
    )]
    Memory {
        /// `the uplink` or `tenant shop`.
        whose: String,
    },
    /// What the broker says of it.
    #[error("{0}")]
    Told(String),
}

/// Bytes that one pull may take: what the link carries in this time, so that nobody waits longer for a large segment.
const PULL: Span = Span::micros(50);

/// How far the link's pace may lag behind and be made up while packets wait: a thread that the kernel kept waiting for
/// a core loses no throughput by it. A scheduler's slice on a busy machine is 3 ms; with a tenth of this the uplink got
/// 80 % of its rate there. A link that had nothing to send makes up nothing.
const CATCH_UP: Span = Span::millis(5);

/// Opens a port; `mac` is the hardware address that the tenant's interface shall have, where we make it.
///
/// # Errors
/// See [`OpenError`].
pub fn open(whose: &str, port: &PortSpec, mtu: u16, mac: Option<Mac>) -> Result<Port, OpenError> {
    Wanted { whose: whose.to_owned(), port, mtu, mac, receive_buffer: None }.open()
}

/// The port as an earlier run left it, if it did.
///
/// # Errors
/// See [`OpenError`].
fn resume(
    whose: &str,
    port: &PortSpec,
    mtu: u16,
    mac: Option<Mac>,
    kept: &mut Kept,
) -> Result<Option<Port>, OpenError> {
    let PortSpec::Tap { netns, name } = port else { return Ok(None) };
    let taken = kept.take(&tap_config(netns.as_ref(), name, mtu, mac));
    let resumed = taken.map_err(|source| OpenError::Port { whose: whose.to_owned(), source })?.map(Port::Tap);
    if let Some(port) = &resumed {
        eprintln!("plimsoll: {whose}: {} is as the run before left it", port.name());
    }
    Ok(resumed)
}

/// A TAP that has its address again after a restart, where this machine can be told from others.
fn tap_config(netns: Option<&Netns>, name: &str, mtu: u16, mac: Option<Mac>) -> TapConfig {
    let mut config = TapConfig::new(netns_ref(netns), name);
    config.mtu = mtu.into();
    config.mac = mac.or_else(|| machine_id().map(|machine| steady_mac(&machine, &config.netns, name)));
    config
}

/// Leaves a TAP's file with the service manager, if there is one, for the next run to take up.
pub(crate) fn keep(port: &Port) {
    if let Err(error) = kept::keep(port) {
        eprintln!(
            "plimsoll: {} ends with this process, as the service manager cannot be told of it: {error}",
            port.name()
        );
    }
}

/// Closes ports for good, and drops what came with them: elsewhere, as closing an interface takes the kernel milliseconds,
/// and the service manager may be busy.
pub(crate) fn close(ports: Vec<Port>, rest: impl Send + 'static) {
    let closing = tokio::task::spawn_blocking(move || {
        ports.iter().for_each(kept::forget);
        drop((ports, rest));
    });
    drop(closing);
}

/// The uplink, with as long a queue in the kernel as an experiment wants.
pub(crate) fn uplink_wanted(config: &Config) -> Wanted<'_> {
    let mtu = config.uplink.mtu;
    let ring = config.engine.experiment.as_ref().and_then(|experiment| experiment.ring);
    // The kernel counts each frame with its bookkeeping, and takes a buffer's size twice.
    let receive_buffer = ring.map(|ring| ring.saturating_mul(u32::from(mtu) + KEPT) / 2);
    Wanted { whose: "the uplink".to_owned(), port: &config.uplink.port, mtu, mac: None, receive_buffer }
}

/// A tenant's port: it sends packets as long as reach other hosts, from the address that those know.
pub(crate) fn tenant_wanted<'a>(checked: &Checked, tenant: &'a TenantConfig) -> Wanted<'a> {
    Wanted {
        whose: format!("tenant {}", tenant.name),
        port: &tenant.port,
        mtu: checked.config.tenant_mtu(),
        mac: known_mac(checked, &tenant.name),
        receive_buffer: None,
    }
}

/// Opens the uplink.
///
/// # Errors
/// See [`OpenError`].
pub fn open_uplink(config: &Config) -> Result<Port, OpenError> {
    uplink_wanted(config).open()
}

/// What a frame in the kernel takes beyond its packet: `sk_buff` (256 bytes) and what rounding up to 2 KiB adds to 1,500.
const KEPT: u32 = 804;

/// The ports of a start.
#[derive(Debug)]
pub(crate) struct Opened {
    /// What the wire is behind.
    pub uplink: Port,
    /// In the order of the policy's tenants.
    pub lanes: Vec<LaneSpec>,
    /// Tenants whose port cannot be opened yet, and why: their lanes have none.
    pub missing: Vec<(String, OpenError)>,
}

/// Ports of an earlier run that the service manager has kept, each as this policy has it.
#[derive(Debug, Default)]
pub(crate) struct Resumed {
    uplink: Option<Port>,
    tenants: BTreeMap<String, Result<Port, OpenError>>,
    rest: Kept,
}

/// Takes up what an earlier run left with the service manager.
///
/// # Errors
/// When that is the uplink, and it cannot be given what the policy says.
pub(crate) fn resume_all(checked: &Checked) -> Result<Resumed, OpenError> {
    let mut resumed = Resumed { rest: Kept::receive(), ..Resumed::default() };
    let (port, mtu) = (&checked.config.uplink.port, checked.config.uplink.mtu);
    resumed.uplink = resume("the uplink", port, mtu, None, &mut resumed.rest)?;
    for tenant in &checked.config.tenants {
        let (whose, mac) = (format!("tenant {}", tenant.name), known_mac(checked, &tenant.name));
        let port = resume(&whose, &tenant.port, checked.config.tenant_mtu(), mac, &mut resumed.rest);
        resumed.tenants.extend(port.transpose().map(|port| (tenant.name.clone(), port)));
    }
    Ok(resumed)
}

/// Opens AF_XDP's ports ahead of all others, while this process has its privileges: for where nobody may pin their frames
/// later.
///
/// # Errors
/// When that is the uplink, and it cannot be opened.
pub(crate) fn open_pinned(checked: &Checked, resumed: &mut Resumed) -> Result<(), OpenError> {
    let uplink = uplink_wanted(&checked.config);
    if uplink.xdp().is_some() {
        resumed.uplink = Some(uplink.open()?);
    }
    for tenant in &checked.config.tenants {
        let wanted = tenant_wanted(checked, tenant);
        if wanted.xdp().is_some() {
            resumed.tenants.insert(tenant.name.clone(), wanted.open());
        }
    }
    Ok(())
}

/// Opens all ports of the policy that a start is made with. What an earlier run left is taken up, and what is made is left
/// with the service manager in turn. A tenant whose port cannot be opened holds up nobody: its container may not have
/// started yet.
///
/// # Errors
/// When the uplink cannot be opened, or a port is none of a daemon's.
pub(crate) fn open_all(checked: &Checked, broker: &Broker, resumed: Resumed) -> Result<Opened, OpenError> {
    let Resumed { uplink, tenants: mut kept, rest } = resumed;
    let uplink = match uplink {
        Some(uplink) => uplink,
        None => broker.open_uplink(checked, 0)?,
    };
    let (mut lanes, mut missing) = (Vec::new(), Vec::new());
    for tenant in &checked.config.tenants {
        let kept = kept.remove(&tenant.name);
        let port = match kept.unwrap_or_else(|| broker.open_tenant(checked, 0, &tenant.name)) {
            Ok(port) => Some(port),
            Err(error @ OpenError::Memory { .. }) => return Err(error),
            Err(error) => {
                missing.push((tenant.name.clone(), error));
                None
            }
        };
        lanes.push(lane_spec(checked, &tenant.name, port));
    }
    rest.let_go();
    lanes.iter().filter_map(|lane| lane.port.as_ref()).chain([&uplink]).for_each(keep);
    Ok(Opened { uplink, lanes, missing })
}

/// Opens a tenant's port: it sends packets as long as reach other hosts, from the address that those know.
///
/// # Errors
/// See [`OpenError`].
pub(crate) fn open_tenant(checked: &Checked, name: &str, port: &PortSpec) -> Result<Port, OpenError> {
    open(&format!("tenant {name}"), port, checked.config.tenant_mtu(), known_mac(checked, name))
}

/// The address that other hosts know a tenant by.
pub(crate) fn known_mac(checked: &Checked, name: &str) -> Option<Mac> {
    let own = checked.config.overlay.as_ref()?.own();
    let known = own.tenants.iter().find(|tenant| tenant.name == name);
    known.and_then(|tenant| tenant.macs.first()).map(|mac| mac.0)
}

/// The fleet of this policy, if it states one; its limits for tenants elsewhere are added to the program.
#[must_use]
pub fn fleet_map(checked: &Checked, program: &mut Program) -> Option<FleetMap> {
    let overlay = checked.config.overlay.as_ref()?;
    Some(FleetMap::new(overlay, checked.config.uplink.mtu, program))
}

/// This host's hardware address on an uplink that has none of its own.
pub(crate) fn steady_uplink_mac(host: &str) -> Mac {
    steady_mac(&machine_id().unwrap_or_default(), &NetnsRef::Name(host.to_owned()), "uplink")
}

/// What the lane of a tenant is made from. Panics when the policy has no such tenant.
#[must_use]
pub fn lane_spec(checked: &Checked, name: &str, port: Option<Port>) -> LaneSpec {
    let tenants = (0..).map(plimsoll_policy::TenantId).zip(&checked.program.tenants);
    let (tenant, stated) =
        tenants.into_iter().find(|(_, tenant)| tenant.name == name).expect("the policy's own tenant");
    let addresses = checked.config.tenants.iter().find(|tenant| tenant.name == name);
    LaneSpec {
        name: name.to_owned(),
        tenant,
        port,
        descriptors: stated.descriptors,
        flows: Quota::of(checked.config.engine.queues, checked.program.tenants.len()).flows,
        addresses: addresses.map(|tenant| tenant.addresses.clone()).unwrap_or_default(),
    }
}

/// Sizes of the NIC engine for this policy and uplink.
#[must_use]
pub fn engine_config(checked: &Checked, uplink: &Port) -> EngineConfig {
    let engine = &checked.config.engine;
    EngineConfig {
        queues: engine.queues,
        ring: engine.ring,
        descriptors: engine.descriptors,
        // What goes through an overlay is cut here.
        pull: pull(
            &checked.program,
            checked.config.overlay.is_none() && uplink.capabilities().takes_segmentation,
        ),
        catch_up: CATCH_UP,
    }
}

/// Most bytes that one pull takes: one frame, or what 50 µs carry when the uplink cuts segments itself.
pub(crate) fn pull(program: &Program, segments: bool) -> Bytes {
    let frame = program.max_frame + program.overhead;
    let most = Bytes::new(65_536);
    if segments { program.link.bytes_in(PULL).min(most).max(frame) } else { frame }
}

/// What tells this machine from all others. Without it a TAP gets a random address each time.
fn machine_id() -> Option<String> {
    std::fs::read_to_string("/etc/machine-id").ok().filter(|id| !id.trim().is_empty())
}

/// An address that a TAP has again after a restart, or after it was lost: neighbours go on reaching it at once, with
/// what they remember. Locally administered, for one receiver; FNV-1a, as it must be the same in every version.
fn steady_mac(machine: &str, netns: &NetnsRef, name: &str) -> [u8; 6] {
    let text = format!("{}\0{}\0{name}", machine.trim(), netns.path().display());
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [first, b, c, d, e, f, g, h] = hash.to_be_bytes();
    [(first & 0xfc) | 0x02, b, c ^ g, d ^ h, e, f]
}

/// A policy's namespace as ports name it.
#[must_use]
pub fn netns_ref(netns: Option<&Netns>) -> NetnsRef {
    match netns {
        None => NetnsRef::Own,
        Some(Netns::Name(name)) => NetnsRef::Name(name.clone()),
        Some(Netns::Path(path)) => NetnsRef::Path(path.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_is_fifty_microseconds_of_link_but_at_least_a_frame() {
        let program = |rate: &str| {
            let text = format!(
                "uplink: {{port: memory, rate: {rate}}}\ntenants:\n  a: {{port: memory}}\n  b: {{port: memory}}\n"
            );
            plimsoll_policy::check_str("test.yaml", &text).expect("a policy").program
        };
        let frame = program("10Gbps").max_frame;
        assert_eq!(pull(&program("10Gbps"), true), Bytes::new(62_500));
        assert_eq!(pull(&program("100Gbps"), true), Bytes::new(65_536));
        assert_eq!(pull(&program("100Mbps"), true), frame);
        assert_eq!(pull(&program("100Gbps"), false), frame);
    }

    #[test]
    fn a_taps_address_is_its_own_and_stays() {
        let shop = NetnsRef::Name("shop".into());
        let mac = steady_mac("m1", &shop, "eth0");
        assert_eq!(mac, steady_mac("m1\n", &shop, "eth0"));
        assert_eq!(mac[0] & 3, 2, "locally administered, not a group");
        for other in [
            steady_mac("m2", &shop, "eth0"),
            steady_mac("m1", &shop, "eth1"),
            steady_mac("m1", &NetnsRef::Own, "eth0"),
        ] {
            assert_ne!(mac, other);
        }
    }
}
