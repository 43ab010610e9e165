//! The overlay: which tenant is at which host, without contradiction.
//!
//! Why: a frame that goes to the wrong host is lost without a message, and so is feedback under a number that two hosts have.
//! From: `docs/policy.md`, "`overlay`".
//! Not here: whether the other hosts' files say the same (no host has both), the key file (the daemon reads it).
//! Invariant: every tenant of the file is at this host; an address of a network is one tenant's at one host, and hosts are told apart by
//! name, number and underlay address, all of one family.

use std::collections::HashMap;
use std::net::IpAddr;

use plimsoll_units::BitRate;

use super::networks;
use crate::addresses::MacAddr;
use crate::config::{
    Encapsulation, Feedback, FleetHost, FleetTenant, MOST_OTHER_KEYS, Overlay, Sealed, Via, overlay_header,
};
use crate::law::{Law, Problem, Problems};
use crate::read::syntax::{FleetHostEntry, FleetTenantEntry, OverlayEntry, TenantEntry};
use plimsoll_document::{Located, Mark, nearest};

/// Pairs of a tenant here and one elsewhere, each of which has limits of its own.
const MOST_PAIRS: usize = 16_384;
/// The shortest packet that every tenant's stack must be able to send (RFC 791's reassembly size).
const LEAST_MTU: u16 = 576;

/// The overlay as the daemon takes it; none, with problems, when it contradicts itself.
pub(crate) fn judge(
    entry: &OverlayEntry,
    tenants: &[TenantEntry],
    link: BitRate,
    mtu: u16,
    problems: &mut Problems,
) -> Option<Overlay> {
    networks::judge(entry, problems);
    apart(entry, problems);
    one_family(entry, problems);
    let host = own(entry, problems)?;
    let own = &entry.hosts[host];
    same_tenants(own, tenants, problems);
    reachable(entry, host, problems);
    few_pairs(entry, own, problems);
    let distributor = distributor(entry, problems);
    let sealed = entry.sealed.as_ref().map_or(Sealed::No, |sealed| sealed.value);
    can_seal(entry, problems);
    accepted_keys(entry, problems);
    if let Some(address) = own.address.map(|address| address.value)
        && let header = overlay_header(address, sealed)
        && mtu < LEAST_MTU + header
    {
        let message = format!("tenants would have an MTU of {}", mtu.saturating_sub(header));
        let problem =
            Problem::error(Law::BadValue, entry.at, message).label("takes the rest of `uplink.mtu`");
        problems.push(problem.help(format!("write `mtu: {}` or more for the uplink", LEAST_MTU + header)));
    }
    let feedback = match &entry.feedback {
        Some(stated) => {
            // A tenth of the link: ten hosts that say nothing fill it.
            let fallback = stated.fallback.or(BitRate::new(link.get() / 10)).unwrap_or(link);
            Some(Feedback { fallback, distributor, ..stated.feedback.clone()? })
        }
        None => None,
    };
    let tenants = entry.hosts.iter().flat_map(|host| &host.tenants);
    let stated: Vec<_> = tenants.map(|tenant| (tenant.weight, tenant.max)).collect();
    let weights = &mut sender_weights(&stated).into_iter();
    Some(Overlay {
        kind: entry.kind?,
        vni: entry.vni,
        networks: entry.networks(),
        port: entry.port,
        dscp: entry.dscp,
        v6_checksum: entry.v6_checksum,
        gateway: entry.gateway.map(|gateway| gateway.value),
        host,
        hosts: entry.hosts.iter().map(|host| fleet_host(entry, host, weights)).collect::<Option<_>>()?,
        key: entry.key.as_ref().map(|key| key.value.clone()).or_else(|| Some(feedback.as_ref()?.key.clone())),
        accept_keys: entry.accept_keys.iter().map(|key| key.value.clone()).collect(),
        feedback,
        sealed,
    })
}

/// Checks that sealed frames have one key for the fleet, and headers that can mark them.
fn can_seal(entry: &OverlayEntry, problems: &mut Problems) {
    let of_feedback = entry.feedback.as_ref().and_then(|stated| stated.feedback.as_ref());
    if let (Some(key), Some(feedback)) = (&entry.key, of_feedback)
        && key.value != feedback.key
    {
        let message =
            format!("`key` is {} and `feedback.key` is {}", key.value.display(), feedback.key.display());
        let problem = Problem::error(Law::NameClash, key.at, message).label("another one");
        problems.push(
            problem.help("a fleet has one key: write it in one of the two places, or the same in both"),
        );
    }
    let Some(sealed) = entry.sealed.as_ref().filter(|sealed| sealed.value != Sealed::No) else {
        if let Some(key) = entry.key.as_ref().filter(|_| entry.feedback.is_none()) {
            let problem =
                Problem::error(Law::Meaningless, key.at, "nothing is sealed with this key".to_owned())
                    .label("not used");
            problems.push(problem.help("add `sealed: true`, or leave it out"));
        }
        return;
    };
    if entry.kind == Some(Encapsulation::Vxlan) {
        let message = "VXLAN's header cannot say that a frame is sealed".to_owned();
        let problem = Problem::error(Law::BadValue, sealed.at, message).label("asked for here");
        problems.push(problem.help("write `kind: geneve`, at all hosts"));
    }
    if entry.key.is_none() && entry.feedback.is_none() {
        let message = "frames are to be sealed, and there is no key".to_owned();
        let problem = Problem::error(Law::MissingKey, sealed.at, message).label("asked for here");
        problems.push(problem.help(
            "add `key: /etc/plimsoll/fleet.key`; `head -c 32 /dev/urandom >FILE; chmod 600 FILE` makes a key, the same file for \
             all hosts",
        ));
    }
}

/// Checks that keys which are accepted as well stand beside one that seals, and are few.
fn accepted_keys(entry: &OverlayEntry, problems: &mut Problems) {
    let Some(first) = entry.accept_keys.first() else { return };
    let of_feedback = entry.feedback.as_ref().and_then(|stated| Some(&stated.feedback.as_ref()?.key));
    let own = entry.key.as_ref().map(|key| &key.value).or(of_feedback);
    if own.is_none() && entry.feedback.is_none() {
        let message = "other keys are accepted, and there is no key to seal with".to_owned();
        let problem = Problem::error(Law::MissingKey, first.at, message).label("accepted here");
        problems.push(problem.help("add `key: /etc/plimsoll/fleet.key`, the key that this host seals with"));
    }
    for (place, key) in entry.accept_keys.iter().enumerate() {
        let before = entry.accept_keys[..place].iter().any(|before| before.value == key.value);
        if before || own == Some(&key.value) {
            let message = format!("{} is accepted already", key.value.display());
            let label = if before { "again here" } else { "this host seals with it" };
            let problem = Problem::error(Law::NameClash, key.at, message).label(label);
            problems.push(problem.help("leave it out"));
        }
    }
    if let Some(key) = entry.accept_keys.get(MOST_OTHER_KEYS) {
        let message = format!("{} other keys are accepted", entry.accept_keys.len());
        let problem = Problem::error(Law::TooLarge, key.at, message).label("one too many");
        problems.push(
            problem.help(format!("a forged message costs a check for each: write {MOST_OTHER_KEYS} at most")),
        );
    }
}

/// The weights of a fleet's senders, of what each one's `weight` and `max` are: the stated weight, else 1. Where every sender
/// has a `max` and none a weight, it is the `max` in thousandths of the greatest, and never nothing (PN-M4).
#[must_use]
pub fn sender_weights(stated: &[(Option<u32>, Option<BitRate>)]) -> Vec<u32> {
    let unweighted = stated.iter().all(|(weight, _)| weight.is_none());
    let maxima: Option<Vec<BitRate>> = stated.iter().map(|&(_, max)| max).collect();
    let Some(maxima) = maxima.filter(|_| unweighted) else {
        return stated.iter().map(|(weight, _)| weight.unwrap_or(1)).collect();
    };
    let greatest = maxima.iter().map(|max| u128::from(max.get())).max().unwrap_or(1);
    maxima.iter().map(|max| (u128::from(max.get()) * 1_000 / greatest).max(1) as u32).collect()
}

/// A sender's weight in thousandths of the fleet's heaviest, and never nothing. A limit is for a sender of weight one: with
/// heavier ones, a single sender's limit could be many times its rate, and would take as many epochs to come down.
#[must_use]
pub fn relative_weight(weight: u32, heaviest: u32) -> u32 {
    let weight = u64::from(weight) * 1_000 / u64::from(heaviest.max(1));
    (weight as u32).max(1)
}

fn fleet_host(
    overlay: &OverlayEntry,
    entry: &FleetHostEntry,
    weights: &mut impl Iterator<Item = u32>,
) -> Option<FleetHost> {
    let mut tenant = |entry: &FleetTenantEntry| {
        Some(FleetTenant {
            name: entry.name.value.clone(),
            macs: entry.macs.iter().map(|mac| mac.value).collect(),
            weight: weights.next().unwrap_or(1),
            balancer: entry.balancer,
            untouched: entry.untouched,
            network: overlay.network_of(entry)?,
        })
    };
    Some(FleetHost {
        name: entry.name.value.clone(),
        number: number(&entry.name.value),
        address: entry.address?.value,
        mac: entry.mac,
        channel: entry.channel,
        fallback: entry.fallback,
        tenants: entry.tenants.iter().map(&mut tenant).collect::<Option<_>>()?,
    })
}

/// A number that every host makes of the name: FNV-1a, as it must be the same in every version.
fn number(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The host that this file is for.
fn own(entry: &OverlayEntry, problems: &mut Problems) -> Option<usize> {
    let help = "name the one of `hosts` that this file is for, or add it to them";
    host_named(entry, entry.host.as_ref()?, help, problems)
}

/// The host that divides among the balancers: stated if and only if there are balancers.
fn distributor(entry: &OverlayEntry, problems: &mut Problems) -> Option<usize> {
    let stated = entry.feedback.as_ref()?;
    let balancer = entry.hosts.iter().flat_map(|host| &host.tenants).find(|tenant| tenant.balancer);
    match (&stated.distributor, balancer) {
        (Some(name), Some(_)) => {
            host_named(entry, name, "name one of `hosts`: it divides among the balancers", problems)
        }
        (None, Some(balancer)) => {
            let message =
                format!("`{}` is a balancer, and no host divides among balancers", balancer.name.value);
            let problem = Problem::error(Law::MissingKey, balancer.name.at, message).label("without a limit");
            problems.push(problem.help("add `distributor: HOST` to `feedback`, the same at every host"));
            None
        }
        (Some(name), None) => {
            let problem =
                Problem::error(Law::BadValue, name.at, "there is no balancer to divide among".to_owned())
                    .label("divides among balancers");
            problems
                .push(problem.help("mark load balancers: `lb1: {mac: 02:00:00:00:0a:01, balancer: true}`"));
            None
        }
        (None, None) => None,
    }
}

fn host_named(
    entry: &OverlayEntry,
    name: &plimsoll_document::Name,
    otherwise: &str,
    problems: &mut Problems,
) -> Option<usize> {
    let found = entry.hosts.iter().position(|host| host.name.value == name.value);
    if found.is_none() {
        let near = nearest(&name.value, entry.hosts.iter().map(|host| host.name.value.as_str()));
        let help = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => otherwise.to_owned(),
        };
        let message = format!("`hosts` has no `{}`", name.value);
        problems
            .push(Problem::error(Law::UnknownName, name.at, message).label("not among the hosts").help(help));
    }
    found
}

/// Reports addresses and numbers that two hosts or tenants share.
fn apart(entry: &OverlayEntry, problems: &mut Problems) {
    let mut clash = |what: String, at: Mark, before: Mark| {
        let problem = Problem::error(Law::NameClash, at, what).label("again here").also(before, "first here");
        problems.push(problem.help("give each its own"));
    };
    let mut addresses: HashMap<IpAddr, Mark> = HashMap::new();
    let mut numbers: HashMap<u32, &plimsoll_document::Name> = HashMap::new();
    let mut macs: HashMap<(Option<u32>, MacAddr), Mark> = HashMap::new();
    for host in &entry.hosts {
        if let Some(address) = host.address
            && let Some(before) = addresses.insert(address.value, address.at)
        {
            clash(format!("two hosts have the address {}", address.value), address.at, before);
        }
        if let Some(before) = numbers.insert(number(&host.name.value), &host.name)
            && before.value != host.name.value
        {
            let what = format!("`{}` and `{}` come to the same number", before.value, host.name.value);
            clash(what, host.name.at, before.at);
        }
        let macs_of = |tenant| std::iter::repeat(entry.network_of(tenant)).zip(&tenant.macs);
        for (network, mac) in host.tenants.iter().flat_map(macs_of) {
            if let Some(before) = macs.insert((network, mac.value), mac.at) {
                clash(twice(entry, network, mac.value), mac.at, before);
            }
        }
    }
}

fn twice(entry: &OverlayEntry, network: Option<u32>, mac: MacAddr) -> String {
    let named = entry.networks.iter().find(|known| known.vni == network);
    match named {
        Some(network) => format!("{mac} is there twice in network `{}`", network.name.value),
        None => format!("{mac} is there twice"),
    }
}

fn one_family(entry: &OverlayEntry, problems: &mut Problems) {
    let addresses = entry.hosts.iter().filter_map(|host| host.address).chain(entry.gateway);
    let all: Vec<Located<IpAddr>> = addresses.collect();
    let Some(first) = all.first() else { return };
    for other in all.iter().filter(|other| other.value.is_ipv4() != first.value.is_ipv4()) {
        let message = format!("{} and {} cannot reach each other", first.value, other.value);
        let problem = Problem::error(Law::BadValue, other.at, message).label("of the other family");
        problems.push(
            problem
                .also(first.at, "of one family")
                .help("give all hosts IPv4 addresses, or all of them IPv6"),
        );
    }
    for one in &all {
        let ip = one.value;
        if ip.is_multicast() || ip.is_unspecified() || ip.is_loopback() {
            let message = format!("{ip} is no single host's address");
            let problem = Problem::error(Law::BadValue, one.at, message).label("this address");
            problems.push(problem.help("write the address that the host has on the underlay"));
        }
    }
}

/// The tenants of the file are those of this host in the map.
fn same_tenants(own: &FleetHostEntry, tenants: &[TenantEntry], problems: &mut Problems) {
    for tenant in tenants {
        let known = own.tenants.iter().find(|known| known.name.value == tenant.name.value);
        if known.is_none() {
            let (name, host) = (&tenant.name.value, &own.name.value);
            let message = format!("tenant `{name}` has no address at host `{host}`");
            let problem = Problem::error(Law::MissingKey, tenant.name.at, message).label("cannot be reached");
            problems.push(problem.also(own.name.at, "this host").help(format!(
                "add `{name}: 02:00:00:00:0a:01`, the address of its interface, to its `tenants`; a TAP gets this address"
            )));
        }
    }
    for name in own.tenants.iter().map(|tenant| &tenant.name) {
        if tenants.iter().all(|tenant| tenant.name.value != name.value) {
            let near = nearest(&name.value, tenants.iter().map(|tenant| tenant.name.value.as_str()));
            let help = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => "add it to the file's `tenants`, or remove it here".to_owned(),
            };
            let message = format!("the file has no tenant `{}`", name.value);
            problems
                .push(Problem::error(Law::UnknownName, name.at, message).label("no tenant here").help(help));
        }
    }
}

/// Feedback over the control channel needs one at each host.
fn reachable(entry: &OverlayEntry, own: usize, problems: &mut Problems) {
    let Some(stated) = &entry.feedback else { return };
    if stated.feedback.as_ref().is_none_or(|feedback| feedback.via != Via::Channel) {
        return;
    }
    for (index, host) in entry.hosts.iter().enumerate().filter(|(_, host)| host.channel.is_none()) {
        let name = &host.name.value;
        let message = match index == own {
            true => format!("feedback goes over the control channel, and this host, `{name}`, has none"),
            false => format!("feedback goes over the control channel, and host `{name}` has none"),
        };
        let problem = Problem::error(Law::MissingKey, host.name.at, message).label("states no `channel`");
        let help = "add `channel: 192.0.2.1:7077`, or write `via: datapath`";
        problems.push(problem.also(stated.via_at, "asked for here").help(help));
    }
}

fn few_pairs(entry: &OverlayEntry, own: &FleetHostEntry, problems: &mut Problems) {
    let Some(stated) = &entry.feedback else { return };
    let all: usize = entry.hosts.iter().map(|host| host.tenants.len()).sum();
    let pairs = own.tenants.len() * (all - own.tenants.len());
    if pairs > MOST_PAIRS {
        let message = format!("{pairs} pairs of tenants here and elsewhere, each with limits of its own");
        let problem =
            Problem::error(Law::TooLarge, stated.via_at, message).label("too many to hold to limits");
        problems
            .push(problem.help(format!("at most {MOST_PAIRS}: leave `feedback` out, or split the fleet")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_weigh_what_they_state_or_what_they_may_send() {
        let max =
            |gbps: &[u64]| gbps.iter().map(|&gbps| (None, Some(BitRate::gbps(gbps)))).collect::<Vec<_>>();
        assert_eq!(sender_weights(&max(&[5, 10, 15])), [333, 666, 1_000], "by `max`, where each has one");
        let weighed: Vec<_> = max(&[5, 10, 15])
            .into_iter()
            .zip([1, 2, 3])
            .map(|((_, max), weight)| (Some(weight), max))
            .collect();
        assert_eq!(sender_weights(&weighed), [1, 2, 3]);
        assert_eq!(
            sender_weights(&[(Some(4), None), (None, Some(BitRate::gbps(5))), (None, None)]),
            [4, 1, 1]
        );
        assert_eq!([1, 2, 3].map(|weight| relative_weight(weight, 3)), [333, 666, 1_000]);
        assert_eq!(relative_weight(1, 65_535), 1, "never nothing");
    }
}
