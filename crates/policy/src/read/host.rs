//! The operator's file: `uplink`, `engine`, `api` and `tenants`.

use std::path::PathBuf;

use plimsoll_units::{Bytes, Span};

use super::syntax::{
    ClassEntry, Flows, HostDescriptors, HostFile, IngressEntry, PolicyFile, TenantEntry, UplinkEntry,
};
use super::{Reader, addresses, backpressure, class, interface, named, offload, overlay};
use crate::addresses::MacAddr;
use crate::config::{Api, Completions, EngineConfig, Experiment, IngressOrder, Netns, Port};
use crate::config::{HOLD_OFF, LONGEST_COST, LONGEST_GRAIN, LONGEST_HOLD_OFF};
use crate::keys::{
    API, ENGINE, EXPERIMENT, HOST_FILE, INCLUDED_FILE, INGRESS, MAX_WEIGHT, MOST_DESCRIPTORS, MOST_QUEUES,
    PCAP, PORTS, TAP, TENANT, UPLINK, VHOST_USER,
};
use crate::law::{Law, Problem};
use crate::slo::{DelayTarget, Percentile};
use crate::threads::MOST_THREADS;
use plimsoll_document::{Fields, FileId, Located, Mark, Name, Tree, Value, bad};

/// `sun_path` less the closing zero.
const LONGEST_SOCKET: usize = 107;
/// Largest IP packet unless stated.
pub(crate) const DEFAULT_MTU: u16 = 1_500;
const METADATA: &str = "the whole number that `match` names";
const PORT_HELP: &str = "a port is one of `{af_xdp: eth0}`, `{af_packet: eth0}`, `{tap: {netns: shop, name: eth0}}`, \
                         `{vhost_user: /run/plimsoll/vm.sock}`, `{vnic: /run/plimsoll/shop.sock}`, `{pcap: {read: in.pcap, write: out.pcap}}` and `memory`";

/// The operator's file.
pub(crate) fn host_file(reader: &mut Reader, tree: &Tree) -> HostFile {
    let top = reader.fields(tree, tree.at, "the policy file", &HOST_FILE);
    let engine_at = top.key_at("engine").or(top.key_at("uplink")).unwrap_or(tree.at);
    let (engine, [cpu_at, descriptors_at, threads_at]) =
        top.get("engine").map_or_else(Default::default, |tree| engine(reader, tree));
    let flows = top.get("engine").and_then(|engine| engine.get("flows"));
    HostFile {
        uplink: top.get("uplink").map(|tree| uplink(reader, tree)),
        engine,
        engine_at,
        cpu_at,
        threads_at,
        flows: flows.and_then(|tree| class::default_flows(reader, tree)).unwrap_or_default(),
        descriptors: HostDescriptors { stated: descriptors_at, engine: engine_at },
        api: top.get("api").map_or_else(Api::default, |tree| api(reader, tree)),
        tenants: tenants(reader, &top.all("tenants")),
        include: top.get("include").and_then(|tree| include(reader, tree)),
        overlay: top.get("overlay").map(|tree| overlay::overlay(reader, tree)),
        backpressure: top.get("backpressure").map(|tree| backpressure::backpressure(reader, tree)),
        policy: PolicyFile {
            at: tree.at,
            limits: class::limits(reader, &top),
            classes: class::classes(reader, &top),
            rootless: false,
        },
    }
}

/// The host around a sub-policy that is checked alone: one tenant, whose file it is, on a link of any rate.
pub(crate) fn any_host(policy: &PolicyFile, path: &str, file: FileId) -> HostFile {
    let (folder_end, file_end) = (path.rfind('/').map_or(0, |at| at + 1), path.len());
    let file_name = &path[folder_end..file_end];
    let at = Mark { file, ..Mark::default() };
    // The file may name its tenant; otherwise it is called as the file is.
    let classes = policy.classes.iter().flatten().flat_map(|class| &class.matches);
    let named = classes.flat_map(|found| &found.tenant).map(|name| name.value.clone()).next();
    let stem = file_name.split('.').next().unwrap_or_default();
    let name = Located::new(named.unwrap_or_else(|| stem.to_owned()), at);
    let mut class = ClassEntry::new(name.clone());
    class.policy = Some(Located::new(file_name.to_owned(), policy.at));
    let memory = Some(Located::new(Port::Memory, at));
    // Its port is not known: it may be the one that says most of its packets.
    let port = Some(Located::new(Port::Vnic(PathBuf::new()), at));
    HostFile {
        uplink: Some(UplinkEntry {
            port: memory,
            standby: None,
            hold_off: HOLD_OFF,
            rate: None,
            overhead: Bytes::ZERO,
            mtu: DEFAULT_MTU,
            grain: None,
        }),
        engine: EngineConfig::default(),
        engine_at: at,
        cpu_at: None,
        threads_at: None,
        flows: Flows::default(),
        descriptors: HostDescriptors { stated: None, engine: at },
        api: Api::default(),
        tenants: vec![TenantEntry { port, ..TenantEntry::new(name, class) }],
        include: None,
        overlay: None,
        backpressure: None,
        policy: PolicyFile { at, limits: Vec::new(), classes: None, rootless: false },
    }
}

fn uplink(reader: &mut Reader, tree: &Tree) -> UplinkEntry {
    let keys = reader.fields(tree, tree.at, "`uplink`", &UPLINK);
    let mtu = keys.get("mtu").and_then(|tree| mtu(reader, tree)).unwrap_or(DEFAULT_MTU);
    let overhead =
        keys.get("overhead").and_then(|tree| reader.value(tree, "`overhead`", "a size such as `24B`"));
    let overhead = overhead.map_or(Bytes::ZERO, |found: Located<Bytes>| found.value);
    if overhead > Bytes::new(256) {
        let at = keys.get("overhead").map_or(keys.at, |tree| tree.at);
        reader.report(bad(
            at,
            format!("`overhead` is {overhead} a frame"),
            "Ethernet's is 20B, or 24B with the check sequence; 256B at most",
        ));
    }
    let port = keys.get("port").and_then(|tree| port(reader, tree));
    if let Some(Located { value: Port::Vnic(_) | Port::VhostUser { .. }, at }) = &port {
        let help = "a vNIC serves one tenant's process, and `vhost_user` a tenant's virtual machine; an uplink is `af_xdp`, \
                    `af_packet`, `tap`, `pcap` or `memory`";
        reader.report(bad(*at, "the uplink cannot be a vNIC", help));
    }
    let (standby, hold_off) = standby(reader, &keys, port.as_ref());
    UplinkEntry {
        port,
        standby,
        hold_off,
        rate: keys.get("rate").and_then(|tree| reader.value(tree, "`rate`", super::class::RATE)),
        overhead,
        mtu,
        grain: keys.get("grain").and_then(|tree| grain(reader, tree)),
    }
}

/// The port that takes over from `port`, and how long `port` must be well before it takes back.
fn standby(
    reader: &mut Reader,
    keys: &Fields<'_>,
    first: Option<&Located<Port>>,
) -> (Option<Located<Port>>, Span) {
    let standby = keys.get("standby").and_then(|tree| port(reader, tree));
    let ports = [("port", first), ("standby", standby.as_ref())];
    let ports = ports.into_iter().filter_map(|(key, port)| Some((key, port?)));
    for (key, found) in ports.filter(|_| standby.is_some()) {
        if !matches!(found.value, Port::AfPacket(_) | Port::AfXdp(_)) {
            let help = "a standby takes over when `port` loses its carrier, which is known of `af_packet` and `af_xdp`; make \
                        both ports one of these, such as `{af_packet: eth1}`, or leave `standby` out";
            let message =
                format!("the carrier of `{key}: {}` is not known, so a `standby` is of no use", found.value);
            reader.report(bad(found.at, message, help));
        }
    }
    let Some(tree) = keys.get("hold_off") else { return (standby, HOLD_OFF) };
    if keys.get("standby").is_none() {
        let help = "it is the time until `port` takes back from `standby`: add a `standby`, or leave it out";
        reader.report(bad(tree.at, "`hold_off` without `standby`", help));
    }
    let zero = "`0s`, and `port` takes back as soon as it has a carrier; or a time such as `5s`";
    let found: Option<Located<Span>> = reader.value_or_zero(tree, "`hold_off`", "a time such as `5s`", zero);
    let span = found.map_or(HOLD_OFF, |found| found.value);
    if span > LONGEST_HOLD_OFF {
        reader.report(bad(tree.at, format!("`hold_off` is {span}"), "it may be 10min at most"));
    }
    (standby, span)
}

fn grain(reader: &mut Reader, tree: &Tree) -> Option<Span> {
    let zero = "`0us`, and the engine's thread wakes up for each packet that is due; or a time such as `2ms`";
    let found: Located<Span> = reader.value_or_zero(tree, "`grain`", "a time such as `2ms`", zero)?;
    if found.value <= LONGEST_GRAIN {
        return Some(found.value);
    }
    let help = "it may be 10ms at most; `0us` makes the engine's thread wake up for each packet that is due";
    reader.report(bad(tree.at, format!("`grain` is {}", found.value), help));
    None
}

fn mtu(reader: &mut Reader, tree: &Tree) -> Option<u16> {
    let found = reader.value::<u16>(tree, "`mtu`", "a number of bytes from 68 to 9600, without unit")?;
    if (68..=9_600).contains(&found.value) {
        return Some(found.value);
    }
    let message = format!("`mtu` is {}", found.value);
    reader.report(bad(tree.at, message, "Ethernet's is 1500, jumbo frames reach 9600; IP needs at least 68"));
    None
}

/// The engine, and where its core and its descriptors are stated.
fn engine(reader: &mut Reader, tree: &Tree) -> (EngineConfig, [Option<Mark>; 3]) {
    let keys = reader.fields(tree, tree.at, "`engine`", &ENGINE);
    let mut engine = EngineConfig::default();
    if let Some(tree) = keys.get("cpu") {
        engine.cpu =
            reader.value::<u32>(tree, "`cpu`", "the number of a core, from 0").map(|found| found.value);
    }
    if let Some(flag) = keys.get("busy_poll").and_then(|tree| reader.flag(tree, "`busy_poll`")) {
        engine.busy_poll = flag;
    }
    if let Some(tree) = keys.get("verify") {
        let found = reader.value::<u32>(tree, "`verify`", "a number: one packet of this many, 0 for none");
        engine.verify = found.map_or(engine.verify, |found| found.value);
    }
    let mut number = |key: &str, most: u32, into: &mut u32| {
        if let Some(found) = keys.get(key).and_then(|tree| reader.positive(tree, &format!("`{key}`"), most)) {
            *into = found.value;
        }
    };
    let mut ring = u32::from(engine.ring);
    number("threads", MOST_THREADS, &mut engine.threads);
    number("queues", MOST_QUEUES, &mut engine.queues);
    number("ring", 16_384, &mut ring);
    number("descriptors", MOST_DESCRIPTORS, &mut engine.descriptors);
    number("max_depth", 64, &mut engine.max_depth);
    if !ring.is_power_of_two() {
        let at = keys.get("ring").map_or(keys.at, |tree| tree.at);
        let (below, above) = (ring.next_power_of_two() / 2, ring.next_power_of_two());
        let help = format!("write {below} or {above}");
        reader.report(bad(at, format!("`ring` is {ring}, not a power of two"), help));
    }
    engine.ring = u16::try_from(ring).unwrap_or(engine.ring);
    if let Some(tree) = keys.get("line_rate_frame") {
        let found = reader.value(tree, "`line_rate_frame`", "a size such as `64B`");
        engine.line_rate_frame = found.map(|found: Located<Bytes>| found.value.max(Bytes::new(64)));
    }
    engine.experiment = keys.get("experiment").map(|tree| experiment(reader, tree));
    (engine, ["cpu", "descriptors", "threads"].map(|key| keys.get(key).map(|tree| tree.at)))
}

fn experiment(reader: &mut Reader, tree: &Tree) -> Experiment {
    let keys = reader.fields(tree, tree.at, "`experiment`", &EXPERIMENT);
    let mut experiment = Experiment::default();
    for (key, into) in [("drain", &mut experiment.drain), ("cost", &mut experiment.cost)] {
        let Some(tree) = keys.get(key) else { continue };
        let found: Option<Located<Span>> = reader.value(tree, &format!("`{key}`"), "a time such as `20us`");
        let Some(found) = found else { continue };
        if found.value > LONGEST_COST {
            let message = format!("`{key}` is {} a frame", found.value);
            reader.report(bad(tree.at, message, format!("write {LONGEST_COST} or less")));
        }
        *into = found.value.min(LONGEST_COST);
    }
    let mut number = |key: &str, most: u32| {
        let found =
            keys.get(key).and_then(|tree| reader.positive(tree, &format!("`{key}` of `experiment`"), most));
        found.map(|found| found.value)
    };
    experiment.drain_share = number("drain_share", 999).unwrap_or(experiment.drain_share);
    (experiment.ring, experiment.slots) = (number("ring", 65_536), number("slots", 65_536));
    if let Some(tree) = keys.get("ingress") {
        match reader.text(tree, "`ingress` of `experiment`", "`fair` or `shared`") {
            Some("shared") => experiment.ingress = IngressOrder::Shared,
            Some("fair") | None => {}
            Some(other) => {
                let help = "write `fair` (by tenant), or for comparison `shared` (in the order of arrival)";
                reader.report(bad(tree.at, format!("`{other}` is no order on the way in"), help));
            }
        }
    }
    for (key, into) in [("accounting", &mut experiment.accounting), ("limiter", &mut experiment.limiter)] {
        let flag = keys.get(key).and_then(|tree| reader.flag(tree, &format!("`{key}`")));
        *into = flag.unwrap_or(*into);
    }
    experiment
}

fn api(reader: &mut Reader, tree: &Tree) -> Api {
    let keys = reader.fields(tree, tree.at, "`api`", &API);
    let mut api = Api::default();
    if let Some(path) = keys.get("socket").and_then(|tree| reader.text(tree, "`socket`", "a path")) {
        api.socket = PathBuf::from(path);
    }
    if let Some(tree) = keys.get("metrics") {
        let found = reader.value(tree, "`metrics`", "an address and port such as `127.0.0.1:9464`");
        api.metrics = found.map(|found| found.value);
    }
    api
}

/// A file of the folder that `include` names.
pub(crate) fn included_file(reader: &mut Reader, tree: &Tree) -> Vec<TenantEntry> {
    let top = reader.fields(tree, tree.at, "an included file", &INCLUDED_FILE);
    tenants(reader, &top.all("tenants"))
}

fn include(reader: &mut Reader, tree: &Tree) -> Option<Name> {
    let folder = reader.text(tree, "`include`", "a folder such as `tenants.d`")?;
    Some(Name::new(folder.to_owned(), tree.at))
}

fn tenants(reader: &mut Reader, trees: &[&Tree]) -> Vec<TenantEntry> {
    let named = named(reader, trees, "`tenants`");
    named.into_iter().map(|(name, tree)| tenant(reader, name, tree)).collect()
}

fn tenant(reader: &mut Reader, name: &Name, tree: &Tree) -> TenantEntry {
    let what = format!("tenant `{}`", name.value);
    let keys = reader.fields(tree, name.at, &what, &TENANT);
    let mut entry = ClassEntry::new(name.clone());
    class::envelope(reader, &keys, &mut entry);
    class::flow_order(reader, &keys, &mut entry);
    entry.queues = class::queues(reader, &keys, &what);
    let number = |reader: &mut Reader, key: &str, most: u32| {
        keys.get(key).and_then(|tree| reader.positive(tree, &format!("`{key}` of {what}"), most))
    };
    TenantEntry {
        port: keys.get("port").and_then(|tree| port(reader, tree)),
        weight: number(reader, "weight", MAX_WEIGHT),
        descriptors: number(reader, "descriptors", MOST_DESCRIPTORS),
        ingress: keys.get("ingress").map_or_else(IngressEntry::default, |tree| ingress(reader, tree, &what)),
        delay: keys.get("delay").map_or_else(Vec::new, |tree| delay(reader, tree, &what)),
        addresses: addresses::addresses(reader, &keys, &what),
        interface: keys
            .get("interface")
            .map_or_else(Default::default, |tree| interface::interface(reader, tree, &what)),
        ecn: keys.get("ecn").map_or_else(Default::default, |tree| backpressure::ecn(reader, tree, &what)),
        program: keys.get("program").and_then(|tree| offload::program(reader, tree, &what)),
        cgroup: keys.get("cgroup").and_then(|tree| reader.value(tree, "`cgroup`", super::names::CGROUP)),
        user: keys.get("user").and_then(|tree| reader.value(tree, "`user`", METADATA)),
        ..TenantEntry::new(name.clone(), entry)
    }
}

/// A tenant's envelope for receiving, where it differs from that for sending.
fn ingress(reader: &mut Reader, tree: &Tree, what: &str) -> IngressEntry {
    let keys = reader.fields(tree, tree.at, &format!("`ingress` of {what}"), &INGRESS);
    let rate = |reader: &mut Reader, key: &str| {
        let here = format!("`{key}` of `ingress` of {what}");
        keys.get(key).and_then(|tree| reader.value(tree, &here, class::RATE))
    };
    IngressEntry { min: rate(reader, "min"), max: rate(reader, "max") }
}

/// `delay: {p50: 20us, p99: 100us}`, the least percentile first.
fn delay(reader: &mut Reader, tree: &Tree, what: &str) -> Vec<Located<DelayTarget>> {
    let here = format!("`delay` of {what}");
    if let Value::Text(time) = &tree.value {
        let help = format!("say for how many of a hundred packets, as in `delay: {{p99: {time}}}`");
        reader.report(bad(tree.at, format!("{here} names no percentile"), help));
        return Vec::new();
    }
    let entries = reader.map(&[tree], &here, "percentiles and times");
    if entries.is_empty() {
        let help = "write `delay: {p99: 100us}`, or leave it out";
        reader.report(bad(tree.at, format!("{here} states no target"), help));
    }
    let mut targets: Vec<_> = entries
        .into_iter()
        .filter_map(|(name, value)| {
            let Ok(percentile) = name.value.parse::<Percentile>() else {
                let help =
                    "write `p50`, `p99`, `p99.9`: above `p0` and below `p100`, with three decimals at most";
                reader.report(bad(name.at, format!("`{}` in {here} is no percentile", name.value), help));
                return None;
            };
            let most: Located<Span> =
                reader.value(value, &format!("`{percentile}` of {here}"), "a time such as `100us`")?;
            if most.value == Span::ZERO {
                let message = format!("`{percentile}` of {here} is zero");
                let problem = Problem::error(Law::Zero, most.at, message).label("zero");
                reader.report(problem.help("nothing takes no time: write a time such as `100us`"));
                return None;
            }
            Some(Located::new(DelayTarget { percentile, most: most.value }, most.at))
        })
        .collect();
    targets.sort_by_key(|target| target.value.percentile);
    for pair in targets.windows(2) {
        let [lower, higher] = [pair[0].value, pair[1].value];
        if higher.most < lower.most {
            let message = format!("{here} is {higher}, which is shorter than {lower}");
            let problem =
                bad(pair[1].at, message, "a higher percentile takes as long, or longer: exchange the two");
            reader.report(problem.also(pair[0].at, "the lower percentile"));
        }
    }
    targets
}

fn port(reader: &mut Reader, tree: &Tree) -> Option<Located<Port>> {
    let port = match &tree.value {
        Value::Text(text) if text == "memory" => Port::Memory,
        Value::Map(entries) if !entries.is_empty() => {
            let kinds = reader.fields(tree, tree.at, "`port`", &PORTS);
            let port = port_kind(reader, &kinds);
            if entries.len() > 1 {
                reader.report(bad(tree.at, "this is not a port", PORT_HELP));
            }
            port?
        }
        _ => {
            reader.report(bad(tree.at, "this is not a port", PORT_HELP));
            return None;
        }
    };
    Some(Located::new(port, tree.at))
}

/// The first kind that is stated; all of them are read.
fn port_kind(reader: &mut Reader, kinds: &Fields<'_>) -> Option<Port> {
    let mut found = [
        kinds.get("af_xdp").map(|tree| interface(reader, tree, "`af_xdp`").map(Port::AfXdp)),
        kinds.get("af_packet").map(|tree| interface(reader, tree, "`af_packet`").map(Port::AfPacket)),
        kinds.get("tap").map(|tree| tap(reader, tree)),
        kinds.get("vhost_user").map(|tree| vhost_user(reader, tree)),
        kinds.get("vnic").map(|tree| socket(reader, tree, "`vnic`").map(Port::Vnic)),
        kinds.get("pcap").map(|tree| pcap(reader, tree)),
        kinds.get("memory").map(|_| Some(Port::Memory)),
    ];
    found.iter_mut().find_map(Option::take)?
}

fn tap(reader: &mut Reader, tree: &Tree) -> Option<Port> {
    let keys = reader.fields(tree, tree.at, "`tap`", &TAP);
    let netns = keys.get("netns").and_then(|tree| netns(reader, tree));
    interface(reader, keys.get("name")?, "`name`").map(|name| Port::Tap { netns, name })
}

fn netns(reader: &mut Reader, tree: &Tree) -> Option<Netns> {
    let text = reader.text(tree, "`netns`", "a name as in /run/netns or an absolute path")?;
    // One namespace has one name, or a port would be taken for another port.
    let named = ["/run/netns/", "/var/run/netns/"].iter().find_map(|folder| text.strip_prefix(folder));
    let text = named.filter(|name| !name.is_empty() && !name.contains('/')).unwrap_or(text);
    if text.starts_with('/') {
        return Some(Netns::Path(PathBuf::from(text)));
    }
    if text.is_empty() || text.contains('/') || text == "." || text == ".." {
        let help =
            "write a name as `ip netns list` prints it, or an absolute path such as `/proc/1234/ns/net`";
        reader.report(bad(tree.at, format!("`{text}` names no network namespace"), help));
        return None;
    }
    Some(Netns::Name(text.to_owned()))
}

/// A socket's path, or that and more.
fn vhost_user(reader: &mut Reader, tree: &Tree) -> Option<Port> {
    if !matches!(tree.value, Value::Map(_)) {
        let socket = socket(reader, tree, "`vhost_user`")?;
        return Some(Port::VhostUser { socket, completions: Completions::default(), mac: None });
    }
    let keys = reader.fields(tree, tree.at, "`vhost_user`", &VHOST_USER);
    let completions =
        keys.get("completions").map_or(Some(Completions::default()), |tree| completions(reader, tree));
    let socket = socket(reader, keys.get("socket")?, "`socket`")?;
    let mac = keys.get("mac").map(|tree| reader.value::<MacAddr>(tree, "`mac`", overlay::MAC));
    let mac = mac.map_or(Some(None), |mac| mac.map(|mac| Some(mac.value)))?;
    Some(Port::VhostUser { socket, completions: completions?, mac })
}

fn completions(reader: &mut Reader, tree: &Tree) -> Option<Completions> {
    let text = reader.text(tree, "`completions`", "`ooo`, `in_order` or `early`")?;
    match text {
        "ooo" => Some(Completions::Ooo),
        "in_order" => Some(Completions::InOrder),
        "early" => Some(Completions::Early),
        _ => {
            let help = "write `ooo` (each when its packet has left), `in_order` or `early`; the latter two are for comparison";
            reader.report(bad(tree.at, format!("`{text}` is no order of completions"), help));
            None
        }
    }
}

/// A Unix socket of a tenant's: a path that fits into a socket's address.
fn socket(reader: &mut Reader, tree: &Tree, what: &str) -> Option<PathBuf> {
    let text = reader.text(tree, what, "the path of a Unix socket such as `/run/plimsoll/shop.sock`")?;
    if text.starts_with('/') && text.len() <= LONGEST_SOCKET {
        return Some(PathBuf::from(text));
    }
    let message = format!("`{text}` cannot name the socket of {what}");
    let help = "write an absolute path of at most 107 bytes, such as `/run/plimsoll/shop.sock`";
    reader.report(bad(tree.at, message, help));
    None
}

fn pcap(reader: &mut Reader, tree: &Tree) -> Option<Port> {
    let keys = reader.fields(tree, tree.at, "`pcap`", &PCAP);
    let mut path =
        |key: &str| keys.get(key).and_then(|tree| reader.text(tree, &format!("`{key}`"), "a path"));
    let (read, write) = (path("read").map(PathBuf::from), path("write").map(PathBuf::from));
    if read.is_none() && write.is_none() {
        reader.report(bad(tree.at, "`pcap` names no file", "add `read: in.pcap`, `write: out.pcap` or both"));
        return None;
    }
    Some(Port::Pcap { read, write })
}

/// A network interface's name, as the kernel takes it.
fn interface(reader: &mut Reader, tree: &Tree, what: &str) -> Option<String> {
    let text = reader.text(tree, what, "an interface's name such as `eth0`")?;
    let fine = (1..=15).contains(&text.len())
        && !text.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control())
        && text != "."
        && text != "..";
    if fine {
        return Some(text.to_owned());
    }
    let message = format!("`{text}` cannot name an interface");
    reader.report(bad(tree.at, message, "the kernel takes 1 to 15 characters without spaces, `/` and `:`"));
    None
}
