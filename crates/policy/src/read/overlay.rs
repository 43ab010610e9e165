//! The operator's file: `overlay`, and the fleet's map in it.

use std::net::IpAddr;
use std::path::PathBuf;

use plimsoll_units::{BitRate, Span};

use super::syntax::{FeedbackEntry, FleetHostEntry, FleetTenantEntry, NetworkEntry, OverlayEntry};
use super::{Reader, class, named, names};
use crate::addresses::MacAddr;
use crate::config::{ControlLevel, Encapsulation, Feedback, IdleMinimum, Sealed, Via};
use crate::keys::{FEEDBACK, FLEET_HOST, FLEET_TENANT, MAX_WEIGHT, OVERLAY};
use plimsoll_document::{Located, Name, Tree, Value, bad};

const ADDRESS: &str = "an IP address such as `192.0.2.1` or `2001:db8::1`";
pub(super) const MAC: &str = "an interface's address such as `02:00:00:00:0a:01`";

/// The greatest VNI: it has 24 bits.
const LAST_VNI: u32 = (1 << 24) - 1;

/// Time from one decision of a receiver to the next, unless stated: any kernel's timer keeps it, and no person notices it.
const EPOCH: Span = Span::millis(10);
/// How long a limit holds after it was last heard, unless stated.
const LAPSE: Span = Span::millis(500);
/// How long packets may wait at a receiver, unless stated.
const DELAY: Span = Span::micros(500);

pub(super) fn overlay(reader: &mut Reader, tree: &Tree) -> OverlayEntry {
    let keys = reader.fields(tree, tree.at, "`overlay`", &OVERLAY);
    let vni = keys.get("vni").and_then(|tree| below(reader, tree, "`vni`", 0, LAST_VNI));
    let networks = named(reader, &keys.all("networks"), "`networks`");
    let networks = networks.into_iter().map(|(name, tree)| NetworkEntry {
        vni: below(reader, tree, &format!("the VNI of network `{}`", name.value), 0, LAST_VNI),
        name: name.clone(),
    });
    let networks = networks.collect();
    let port = keys.get("port").and_then(|tree| below(reader, tree, "`port` of `overlay`", 1, 65_535));
    let host = keys.get("host").and_then(|tree| {
        let text = reader.text(tree, "`host`", "the name of one of `hosts`")?;
        Some(Located::new(text.to_owned(), tree.at))
    });
    let hosts = named(reader, &keys.all("hosts"), "`hosts`");
    OverlayEntry {
        at: tree.at,
        kind: keys.get("kind").and_then(|tree| kind(reader, tree)),
        vni,
        has_vni: keys.get("vni").is_some(),
        networks,
        port: port.and_then(|port| u16::try_from(port).ok()),
        dscp: keys.get("dscp").and_then(|tree| dscp(reader, tree)).unwrap_or(0),
        v6_checksum: keys
            .get("v6_checksum")
            .and_then(|tree| reader.flag(tree, "`v6_checksum`"))
            .unwrap_or(true),
        gateway: keys.get("gateway").and_then(|tree| reader.value::<IpAddr>(tree, "`gateway`", ADDRESS)),
        host,
        hosts: hosts.into_iter().map(|(name, tree)| fleet_host(reader, name, tree)).collect(),
        feedback: keys.get("feedback").map(|tree| feedback(reader, tree)),
        sealed: keys.get("sealed").and_then(|tree| sealed(reader, tree)),
        key: keys.get("key").and_then(|tree| Some(Located::new(key_file(reader, tree, "`key`")?, tree.at))),
        accept_keys: keys.get("accept_keys").map(|tree| key_files(reader, tree)).unwrap_or_default(),
    }
}

fn sealed(reader: &mut Reader, tree: &Tree) -> Option<Located<Sealed>> {
    let sealed = match reader.text(tree, "`sealed`", "`true`, `accept` or `false`")? {
        "true" => Sealed::Yes,
        "accept" => Sealed::Accept,
        "false" => Sealed::No,
        other => {
            let help = "write `true` (frames between hosts are sealed, and no other is taken), `accept` (while hosts change \
                        over: both are taken) or `false`";
            reader.report(bad(tree.at, format!("`{other}` is nothing that `sealed` could be"), help));
            return None;
        }
    };
    Some(Located::new(sealed, tree.at))
}

/// A whole number from `least` to `most`.
fn below(reader: &mut Reader, tree: &Tree, what: &str, least: u32, most: u32) -> Option<u32> {
    let example = format!("a whole number from {least} to {most}");
    let found = reader.value::<u32>(tree, what, &example)?.value;
    if (least..=most).contains(&found) {
        return Some(found);
    }
    reader.report(bad(tree.at, format!("{what} is {found}"), format!("write {example}")));
    None
}

fn kind(reader: &mut Reader, tree: &Tree) -> Option<Encapsulation> {
    match reader.text(tree, "`kind`", "`geneve` or `vxlan`")? {
        "geneve" => Some(Encapsulation::Geneve),
        "vxlan" => Some(Encapsulation::Vxlan),
        other => {
            let help = "write `geneve`, with which feedback rides on tenants' frames, or `vxlan`, which every switch knows";
            reader.report(bad(tree.at, format!("`{other}` is no kind of overlay"), help));
            None
        }
    }
}

fn dscp(reader: &mut Reader, tree: &Tree) -> Option<u8> {
    let text = reader.text(tree, "`dscp`", "a name such as `cs1`, or a number below 64")?;
    let found = names::code_point(text);
    if found.is_none() {
        let help = "write a name such as `cs1` or `af21`, or a number below 64";
        reader.report(bad(tree.at, format!("`{text}` is no DSCP"), help));
    }
    found
}

fn fleet_host(reader: &mut Reader, name: &Name, tree: &Tree) -> FleetHostEntry {
    let what = format!("host `{}`", name.value);
    let keys = reader.fields(tree, name.at, &what, &FLEET_HOST);
    let tenants = named(reader, &keys.all("tenants"), &format!("`tenants` of {what}"));
    let tenants = tenants.into_iter().map(|(name, tree)| fleet_tenant(reader, name, tree)).collect();
    let mac = keys.get("mac").and_then(|tree| reader.value::<MacAddr>(tree, "`mac`", MAC));
    let channel = keys
        .get("channel")
        .and_then(|tree| reader.value(tree, "`channel`", "an address and port such as `192.0.2.1:7077`"));
    FleetHostEntry {
        name: name.clone(),
        address: keys.get("address").and_then(|tree| reader.value(tree, "`address`", ADDRESS)),
        mac: mac.map(|found| found.value),
        channel: channel.map(|found| found.value),
        fallback: keys.get("fallback").and_then(|tree| fallback(reader, tree)),
        tenants,
    }
}

/// A tenant's hardware addresses, or a map with these and its other keys.
fn fleet_tenant(reader: &mut Reader, name: &Name, tree: &Tree) -> FleetTenantEntry {
    let macs = |reader: &mut Reader, tree: &Tree| -> Vec<Located<MacAddr>> {
        let what = format!("the address of `{}`", name.value);
        let items = reader.one_or_more(tree, &what);
        items.into_iter().filter_map(|item| reader.value(item, &what, MAC)).collect()
    };
    if !matches!(tree.value, Value::Map(_)) {
        let (name, macs) = (name.clone(), macs(reader, tree));
        return FleetTenantEntry {
            name,
            macs,
            weight: None,
            max: None,
            balancer: false,
            untouched: false,
            network: None,
        };
    }
    let what = format!("tenant `{}`", name.value);
    let keys = reader.fields(tree, name.at, &what, &FLEET_TENANT);
    let weight =
        keys.get("weight").and_then(|tree| reader.positive(tree, &format!("`weight` of {what}"), MAX_WEIGHT));
    FleetTenantEntry {
        name: name.clone(),
        macs: keys.get("mac").map(|tree| macs(reader, tree)).unwrap_or_default(),
        weight: weight.map(|weight| weight.value),
        max: keys.get("max").and_then(|tree| reader.value(tree, "`max`", class::RATE)).map(|max| max.value),
        balancer: keys.get("balancer").and_then(|tree| reader.flag(tree, "`balancer`")).unwrap_or(false),
        untouched: keys.get("ecn").is_some_and(|tree| untouched(reader, tree, &what)),
        network: keys.get("network").and_then(|tree| {
            let text = reader.text(tree, &format!("`network` of {what}"), "the name of one of `networks`")?;
            Some(Located::new(text.to_owned(), tree.at))
        }),
    }
}

/// Whether backpressure at other hosts must not change a tenant's packets.
fn untouched(reader: &mut Reader, tree: &Tree, what: &str) -> bool {
    match reader.text(tree, &format!("`ecn` of {what}"), "`allowed` or `untouched`") {
        Some("untouched") => true,
        Some("allowed") | None => false,
        Some(other) => {
            let help = "write `untouched` (backpressure at other hosts changes none of its packets), or leave it out";
            reader.report(bad(tree.at, format!("`{other}` is nothing that `ecn` could be in the map"), help));
            false
        }
    }
}

fn fallback(reader: &mut Reader, tree: &Tree) -> Option<BitRate> {
    reader.value(tree, "`fallback`", class::RATE).map(|found| found.value)
}

fn feedback(reader: &mut Reader, tree: &Tree) -> FeedbackEntry {
    let keys = reader.fields(tree, tree.at, "`feedback`", &FEEDBACK);
    let mut span = |key: &str, unless: Span, [least, most]: [Span; 2]| {
        let Some(tree) = keys.get(key) else { return Some(unless) };
        let example = format!("a time from {least} to {most}");
        let found = reader.value::<Span>(tree, &format!("`{key}`"), &example)?.value;
        if (least..=most).contains(&found) {
            return Some(found);
        }
        reader.report(bad(tree.at, format!("`{key}` is {found}"), format!("write {example}")));
        None
    };
    let epoch = span("epoch", EPOCH, [Span::micros(10), Span::secs(1)]);
    let lapse = span("lapse", LAPSE, [Span::millis(10), Span::secs(60)]);
    let delay = span("delay", DELAY, [Span::micros(1), Span::secs(1)]);
    if let (Some(epoch), Some(lapse)) = (epoch, lapse)
        && lapse < epoch.times(5)
    {
        let at = keys.get("lapse").or(keys.get("epoch")).map_or(keys.at, |tree| tree.at);
        let message = format!("`lapse` is {lapse} and `epoch` is {epoch}");
        let help = format!("a limit must outlive a few lost messages: write {} or more", epoch.times(5));
        reader.report(bad(at, message, help));
    }
    let stated = keys.get("fallback").and_then(|tree| fallback(reader, tree));
    let key = keys.get("key").and_then(|tree| key_file(reader, tree, "`key`"));
    let via = keys.get("via").map_or(Some(Via::default()), |tree| via(reader, tree));
    let ecn = keys.get("ecn").and_then(|tree| reader.flag(tree, "`ecn`")).unwrap_or(false);
    let distributor = keys.get("distributor").and_then(|tree| {
        let text = reader.text(tree, "`distributor`", "the name of one of `hosts`")?;
        Some(Located::new(text.to_owned(), tree.at))
    });
    let control = keys.get("control").map_or(Some(ControlLevel::default()), |tree| control(reader, tree));
    let idle = keys.get("idle").map_or(Some(IdleMinimum::default()), |tree| idle(reader, tree));
    let all = || {
        let (key, via, epoch, lapse, delay) = (key?, via?, epoch?, lapse?, delay?);
        let (control, idle) = (control?, idle?);
        // The caller knows the link, and the hosts.
        let fallback = BitRate::gbps(1);
        Some(Feedback { key, via, epoch, lapse, delay, fallback, ecn, distributor: None, control, idle })
    };
    let via_at = keys.get("via").map_or(tree.at, |tree| tree.at);
    FeedbackEntry { via_at, feedback: all(), fallback: stated, distributor }
}

/// Files with keys of the fleet.
fn key_files(reader: &mut Reader, tree: &Tree) -> Vec<Located<PathBuf>> {
    let items = reader.one_or_more(tree, "`accept_keys`");
    let file = |item: &Tree| Some(Located::new(key_file(reader, item, "`accept_keys`")?, item.at));
    items.into_iter().filter_map(file).collect()
}

fn key_file(reader: &mut Reader, tree: &Tree, what: &str) -> Option<PathBuf> {
    let text = reader.text(tree, what, "the path of a file with the fleet's key")?;
    if text.starts_with('/') {
        return Some(PathBuf::from(text));
    }
    let help = "write an absolute path such as `/etc/plimsoll/fleet.key`; \
                `head -c 32 /dev/urandom >FILE; chmod 600 FILE` makes a key, the same file for all hosts";
    reader.report(bad(tree.at, format!("`{text}` is no absolute path"), help));
    None
}

fn control(reader: &mut Reader, tree: &Tree) -> Option<ControlLevel> {
    match reader.text(tree, "`control`", "`full` or `bandwidth`")? {
        "full" => Some(ControlLevel::Full),
        "bandwidth" => Some(ControlLevel::Bandwidth),
        other => {
            let help = "write `full` (bits and packets a second) or, for comparison, `bandwidth`; without `feedback` no \
                        sender is held back";
            reader.report(bad(tree.at, format!("`{other}` is nothing that senders could be told"), help));
            None
        }
    }
}

fn idle(reader: &mut Reader, tree: &Tree) -> Option<IdleMinimum> {
    match reader.text(tree, "`idle`", "`reserved` or `lent`")? {
        "reserved" => Some(IdleMinimum::Reserved),
        "lent" => Some(IdleMinimum::Lent),
        other => {
            let help = "write `reserved` (it stays free, so that its first packets find room) or `lent` (the others get it \
                        until it is wanted)";
            reader.report(bad(
                tree.at,
                format!("`{other}` is nothing to do with an idle tenant's `min`"),
                help,
            ));
            None
        }
    }
}

fn via(reader: &mut Reader, tree: &Tree) -> Option<Via> {
    match reader.text(tree, "`via`", "`datapath` or `channel`")? {
        "datapath" => Some(Via::Datapath),
        "channel" => Some(Via::Channel),
        other => {
            let help = "write `datapath` (with tenants' frames, or in frames of its own) or `channel` (from a thread of its \
                        own, to each host's `channel`)";
            reader.report(bad(tree.at, format!("`{other}` is no way for feedback"), help));
            None
        }
    }
}
