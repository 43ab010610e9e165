//! From a policy file's port to an open one.
//!
//! Why: the language says where a port is, the crate `ports` knows how it is made.
//! From: `docs/policy.md`, "ports".
//! Not here: what is done with it (`engine`).
//! Invariant: what fails names the port, the place and the way out.

use plimsoll_nic::Config as EngineConfig;
use plimsoll_policy::{Checked, Config, Netns, Port as PortSpec, Program};
use plimsoll_ports::netns::NetnsRef;
use plimsoll_ports::{
    Completions, Kept, PacketConfig, PacketSocket, PcapConfig, PcapPort, Port, PortError, Tap, TapConfig,
    VhostUser, VhostUserConfig, VnicConfig, VnicPort, XdpConfig, XdpSocket, kept,
};
use plimsoll_units::{Bytes, Span};

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
    let opened = match port {
        PortSpec::Tap { netns, name } => {
            Tap::open(&tap_config(netns.as_ref(), name, mtu, mac)).map(Port::Tap)
        }
        PortSpec::AfPacket(interface) => {
            PacketSocket::open(&PacketConfig::new(NetnsRef::Own, interface)).map(Port::AfPacket)
        }
        PortSpec::AfXdp(interface) => {
            XdpSocket::open(&XdpConfig::new(NetnsRef::Own, interface)).map(Port::AfXdp)
        }
        PortSpec::Pcap { read, write } => {
            PcapPort::open(&PcapConfig { read: read.clone(), write: write.clone() }).map(Port::Pcap)
        }
        PortSpec::Vnic(path) => {
            let mut config = VnicConfig::new(path);
            config.mtu = mtu.into();
            let place = NetnsRef::Path(path.clone());
            config.mac = mac.unwrap_or_else(|| steady_mac(&machine_id().unwrap_or_default(), &place, "vnic"));
            VnicPort::open(&config).map(Port::Vnic)
        }
        PortSpec::VhostUser { socket, completions, mac: stated } => {
            let mut config = VhostUserConfig::new(socket);
            config.mtu = mtu.into();
            config.mac = mac.or(stated.map(|mac| mac.0));
            config.completions = match completions {
                plimsoll_policy::Completions::Ooo => Completions::OutOfOrder,
                plimsoll_policy::Completions::InOrder => Completions::InOrder,
                plimsoll_policy::Completions::Early => Completions::Early,
            };
            VhostUser::open(&config).map(Port::VhostUser)
        }
        PortSpec::Memory => return Err(OpenError::Memory { whose: whose.to_owned() }),
    };
    opened.map_err(|source| OpenError::Port { whose: whose.to_owned(), source })
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

/// Opens the uplink, with as long a queue in the kernel as an experiment wants.
///
/// # Errors
/// See [`OpenError`].
pub fn open_uplink(config: &Config) -> Result<Port, OpenError> {
    let (port, mtu) = (&config.uplink.port, config.uplink.mtu);
    let ring = config.engine.experiment.as_ref().and_then(|experiment| experiment.ring);
    let (PortSpec::AfPacket(interface), Some(ring)) = (port, ring) else {
        return open("the uplink", port, mtu, None);
    };
    let mut config = PacketConfig::new(NetnsRef::Own, interface);
    // The kernel counts each frame with its bookkeeping, and takes a buffer's size twice.
    config.receive_buffer = ring.saturating_mul(u32::from(mtu) + KEPT) / 2;
    let opened = PacketSocket::open(&config).map(Port::AfPacket);
    opened.map_err(|source| OpenError::Port { whose: "the uplink".to_owned(), source })
}

/// What a frame in the kernel takes beyond its packet: `sk_buff` (256 bytes) and what rounding up to 2 KiB adds to 1,500.
const KEPT: u32 = 804;

/// The ports of a start.
#[derive(Debug)]
pub struct Opened {
    /// What the wire is behind.
    pub uplink: Port,
    /// In the order of the policy's tenants.
    pub lanes: Vec<LaneSpec>,
    /// Tenants whose port cannot be opened yet, and why: their lanes have none.
    pub missing: Vec<(String, OpenError)>,
}

/// Opens all ports of a policy. What an earlier run left with the service manager is taken up, and what is made is left
/// with it in turn. A tenant whose port cannot be opened holds up nobody: its container may not have started yet.
///
/// # Errors
/// When the uplink cannot be opened, or a port is none of a daemon's.
pub fn open_all(checked: &Checked) -> Result<Opened, OpenError> {
    let mut kept = Kept::receive();
    let (port, mtu) = (&checked.config.uplink.port, checked.config.uplink.mtu);
    let uplink = match resume("the uplink", port, mtu, None, &mut kept)? {
        Some(uplink) => uplink,
        None => open_uplink(&checked.config)?,
    };
    let (mut lanes, mut missing) = (Vec::new(), Vec::new());
    for tenant in &checked.config.tenants {
        let port = match resume_or_open_tenant(checked, &tenant.name, &tenant.port, &mut kept) {
            Ok(port) => Some(port),
            Err(error @ OpenError::Memory { .. }) => return Err(error),
            Err(error) => {
                missing.push((tenant.name.clone(), error));
                None
            }
        };
        lanes.push(lane_spec(checked, &tenant.name, port));
    }
    kept.let_go();
    lanes.iter().filter_map(|lane| lane.port.as_ref()).chain([&uplink]).for_each(keep);
    Ok(Opened { uplink, lanes, missing })
}

fn resume_or_open_tenant(
    checked: &Checked,
    name: &str,
    port: &PortSpec,
    kept: &mut Kept,
) -> Result<Port, OpenError> {
    let mac = known_mac(checked, name);
    match resume(&format!("tenant {name}"), port, checked.config.tenant_mtu(), mac, kept)? {
        Some(port) => Ok(port),
        None => open_tenant(checked, name, port),
    }
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
    LaneSpec {
        name: name.to_owned(),
        tenant,
        port,
        descriptors: stated.descriptors,
        flows: Quota::of(checked.config.engine.queues, checked.program.tenants.len()).flows,
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
