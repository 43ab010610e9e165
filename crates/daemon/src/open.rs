//! Opens the ports that a policy file names.
//!
//! Why: the language states where a port is, and the crate `ports` makes it.
//! From: `docs/policy.md`, "ports".
//! Not here: which ports a start opens (`startup`), and their use (`dataplane`).
//! Invariant: an error names the port, its place and what to do.

mod wanted;

use plimsoll_policy::{Checked, Config, Netns, Port as PortSpec, TenantConfig};
use plimsoll_ports::netns::{Cidr, NetnsRef};
use plimsoll_ports::{Port, PortError, TapConfig, kept};
use plimsoll_wire::overlay::pieces_of;

pub(crate) use wanted::Wanted;

use crate::dataplane::{Mac, Whose};

/// A port of the policy that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The port's own error.
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
    /// A port of the uplink that carries less than the policy lets tenants send.
    #[error(
        "{whose}, {name}, has an MTU of {most} and `uplink.mtu` is {wanted}: longer packets than the device carries would be \
         lost; raise the device's (`ip link set dev NAME mtu {wanted}`), or write `mtu: {most}` for the uplink"
    )]
    Short {
        /// `the uplink` or `the standby uplink`.
        whose: String,
        /// The port's name.
        name: String,
        /// Its MTU.
        most: u32,
        /// The policy's.
        wanted: u16,
    },
    /// The broker's error, as text.
    #[error("{0}")]
    Told(String),
}

/// Opens a port; `mac` is the hardware address that the tenant's interface gets, where we make it.
///
/// # Errors
/// See [`OpenError`].
pub fn open(whose: &str, port: &PortSpec, mtu: u16, mac: Option<Mac>) -> Result<Port, OpenError> {
    Wanted {
        whose: whose.to_owned(),
        port,
        mtu,
        most_segments: None,
        mac,
        interface: None,
        queues: 1,
        receive_buffer: None,
    }
    .open()
}

/// A TAP's configuration. Where this machine has an identifier, the TAP has the same address after each restart.
fn tap_config(wanted: &Wanted<'_>, netns: Option<&Netns>, name: &str) -> TapConfig {
    let mut config = TapConfig::new(netns_ref(netns), name);
    config.mtu = wanted.mtu.into();
    config.most_segments = wanted.most_segments;
    config.mac = wanted.mac.or_else(|| machine_id().map(|machine| steady_mac(&machine, &config.netns, name)));
    if let Some(interface) = wanted.interface {
        config.mtu = interface.mtu.unwrap_or(wanted.mtu).into();
        config.persist = interface.persist;
        let cidr = |addr, prefix| Cidr { addr, prefix };
        config.addresses = interface.addresses.iter().map(|one| cidr(one.addr, one.len)).collect();
        config.routes =
            interface.routes.iter().map(|route| (cidr(route.to.addr, route.to.len), route.via)).collect();
    }
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

/// Checks that a port of the uplink takes packets as long as tenants may send: longer ones would be lost silently.
///
/// # Errors
/// [`OpenError::Short`].
pub(crate) fn carries(whose: &Whose, port: &Port, wanted: u16) -> Result<(), OpenError> {
    let most = port.capabilities().mtu;
    if most < u32::from(wanted) {
        return Err(OpenError::Short { whose: whose.to_string(), name: port.name(), most, wanted });
    }
    Ok(())
}

/// Closes ports for good and drops `rest`, on another thread: closing an interface takes the kernel milliseconds, and the
/// service manager may be busy.
pub(crate) fn close(ports: Vec<Port>, rest: impl Send + 'static) {
    let closing = tokio::task::spawn_blocking(move || {
        ports.iter().for_each(kept::forget);
        drop((ports, rest));
    });
    drop(closing);
}

/// One of the uplink's ports, with the queue in the kernel that an experiment states; none where the policy has no such port.
pub(crate) fn uplink_wanted<'a>(config: &'a Config, whose: &Whose) -> Option<Wanted<'a>> {
    let port = match whose {
        Whose::Uplink => &config.uplink.port,
        Whose::Standby => config.uplink.standby.as_ref()?,
        Whose::Tenant(_) => return None,
    };
    let mtu = config.uplink.mtu;
    let queues = if *whose == Whose::Uplink { config.engine.threads } else { 1 };
    let ring = config.engine.experiment.as_ref().and_then(|experiment| experiment.ring);
    // The kernel counts each frame with its bookkeeping, and takes a buffer's size twice.
    let receive_buffer = ring.map(|ring| ring.saturating_mul(u32::from(mtu) + KEPT) / 2);
    Some(Wanted {
        whose: whose.to_string(),
        port,
        mtu,
        most_segments: None,
        mac: None,
        interface: None,
        queues,
        receive_buffer,
    })
}

/// A tenant's port, with the MTU that reaches other hosts and the address that they know.
pub(crate) fn tenant_wanted<'a>(checked: &Checked, tenant: &'a TenantConfig) -> Wanted<'a> {
    Wanted {
        whose: format!("tenant {}", tenant.name),
        port: &tenant.port,
        mtu: checked.config.tenant_mtu(),
        // A segment then leaves in one datagram for another host, and not in two.
        most_segments: checked.config.overlay.as_ref().map(|_| pieces_of(checked.config.uplink.mtu)),
        mac: known_mac(checked, &tenant.name),
        interface: Some(&tenant.interface),
        queues: 1,
        receive_buffer: None,
    }
}

/// Bytes that a frame in the kernel takes beyond its packet: `sk_buff` (256), and rounding 1,500 up to 2 KiB.
const KEPT: u32 = 804;

/// Opens a tenant's port, with the MTU that reaches other hosts and the address that they know.
///
/// # Errors
/// See [`OpenError`].
pub(crate) fn open_tenant(checked: &Checked, tenant: &TenantConfig) -> Result<Port, OpenError> {
    tenant_wanted(checked, tenant).open()
}

/// The address that other hosts know a tenant by.
pub(crate) fn known_mac(checked: &Checked, name: &str) -> Option<Mac> {
    let own = checked.config.overlay.as_ref()?.own();
    let known = own.tenants.iter().find(|tenant| tenant.name == name);
    known.and_then(|tenant| tenant.macs.first()).map(|mac| mac.0)
}

/// This host's hardware address on an uplink that has none of its own.
pub(crate) fn steady_uplink_mac(host: &str) -> Mac {
    steady_mac(&machine_id().unwrap_or_default(), &NetnsRef::Name(host.to_owned()), "uplink")
}

/// This machine's identifier. Without one a TAP gets a random address each time.
fn machine_id() -> Option<String> {
    std::fs::read_to_string("/etc/machine-id").ok().filter(|id| !id.trim().is_empty())
}

/// The address that a TAP has after each restart, and after it was lost: its neighbours' caches stay valid. Locally
/// administered, unicast; by FNV-1a, as it must be the same in every version.
fn steady_mac(machine: &str, netns: &NetnsRef, name: &str) -> [u8; 6] {
    let text = format!("{}\0{}\0{name}", machine.trim(), netns.path().display());
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [first, b, c, d, e, f, g, h] = hash.to_be_bytes();
    [(first & 0xfc) | 0x02, b, c ^ g, d ^ h, e, f]
}

/// A policy's namespace, as the crate `ports` names it.
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
    use plimsoll_ports::{MemoryConfig, MemoryPort};

    use super::*;

    #[test]
    fn an_uplink_that_carries_less_than_tenants_may_send_is_told_at_the_start() {
        let (port, _end) = MemoryPort::pair("eth0", MemoryConfig::default()).expect("memory");
        let uplink = Port::Memory(port);
        let carries = |wanted| carries(&Whose::Standby, &uplink, wanted);
        assert!(carries(1_400).and_then(|()| carries(1_500)).is_ok());
        let message = carries(9_000).expect_err("1500 are fewer").to_string();
        assert!(message.contains("the standby uplink, memory eth0/a, has an MTU of 1500"), "{message}");
        assert!(message.contains("and `uplink.mtu` is 9000"), "{message}");
        assert!(message.contains("mtu 9000") && message.contains("`mtu: 1500`"), "{message}");
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
