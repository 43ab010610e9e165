//! `plimsoll-cni`: containers become tenants as a container engine attaches them.
//!
//! Needs root (network namespaces) and `host-local` of Debian's containernetworking-plugins, which chooses the addresses.

pub mod engines;

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Daemon, Stage, ip, skip};

pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// Where Debian puts the plugins.
const PLUGINS: &str = "/usr/lib/cni";

/// A host whose uplink leads to `far`, and two containers without an interface.
struct Host {
    stage: Stage,
    daemon: Option<Daemon>,
}

impl Host {
    fn start(tag: &str) -> Option<Self> {
        if !Path::new(PLUGINS).join("host-local").exists() {
            skip("containernetworking-plugins, which has host-local, is not installed");
            return None;
        }
        let stage = Stage::with_netns(tag, &["host", "far", "a", "b"])?;
        lay_out(&stage);
        symlink(env!("CARGO_BIN_EXE_plimsoll"), stage.file("plimsoll-cni")).expect("linked");
        let mut host = Self { stage, daemon: None };
        host.run_daemon();
        Some(host)
    }

    fn run_daemon(&mut self) {
        self.daemon = Some(run_daemon(&self.stage));
    }

    fn network(&self, more: &Value) -> Value {
        let mut network = json!({
            "cniVersion": "1.0.0", "name": "lan", "type": "plimsoll-cni",
            "socket": self.stage.file("api.sock"), "tenants": self.stage.file("tenants.d"),
            "ipam": ipam(&self.stage),
        });
        let all = network.as_object_mut().expect("an object");
        all.extend(more.as_object().expect("an object").clone());
        network
    }

    /// Calls the plugin for the container in a namespace.
    fn call(&self, command: &str, container: &str, network: &Value) -> Output {
        self.call_plugin(&self.stage.file("plimsoll-cni"), command, container, network)
    }

    fn call_plugin(&self, plugin: &Path, command: &str, container: &str, network: &Value) -> Output {
        let netns = format!("/run/netns/{}", self.stage.netns(container));
        self.spawn(plugin, command, (container, &netns), "", network).wait_with_output().expect("it ends")
    }

    /// Starts a plugin for a container in a namespace, with these arguments.
    fn spawn(
        &self,
        plugin: &Path,
        command: &str,
        (container, netns): (&str, &str),
        args: &str,
        network: &Value,
    ) -> Child {
        // Not `ip netns exec`, whose mounts, names of namespaces among them, nobody else sees.
        let mut command_line = Command::new("nsenter");
        command_line.arg(format!("--net=/run/netns/{}", self.stage.netns("host"))).arg(plugin);
        let plugin = &mut command_line;
        plugin.env("CNI_COMMAND", command).env("CNI_CONTAINERID", container).env("CNI_IFNAME", "eth0");
        plugin.env("CNI_NETNS", netns).env("CNI_PATH", PLUGINS).env("CNI_ARGS", args);
        let piped = plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = piped.spawn().expect("it runs");
        let text = network.to_string();
        process.stdin.take().expect("piped").write_all(text.as_bytes()).expect("written");
        process
    }

    /// A call that must succeed, and its answer.
    fn succeeds(&self, command: &str, container: &str, network: &Value) -> Value {
        let done = self.call(command, container, network);
        let said = [&done.stdout[..], &done.stderr].map(String::from_utf8_lossy).concat();
        assert!(done.status.success(), "{command}: {said}\n{}", self.stage.read("log"));
        serde_json::from_slice(&done.stdout).unwrap_or(Value::Null)
    }

    /// A call that must fail, with its code and all that it says.
    fn fails(&self, command: &str, container: &str, network: &Value) -> (u64, String) {
        let done = self.call(command, container, network);
        assert!(!done.status.success(), "{command} succeeds");
        let answer: Value = serde_json::from_slice(&done.stdout).expect("JSON");
        (answer["code"].as_u64().expect("a code"), answer.to_string())
    }

    fn tenants(&self) -> Vec<String> {
        tenants(&self.stage)
    }

    /// The files of attachments.
    fn files(&self) -> usize {
        let entries = fs::read_dir(self.stage.file("tenants.d")).expect("the folder").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".yaml")).count()
    }

    fn has_interface(&self, container: &str) -> bool {
        let shown =
            Command::new("ip").args(["-n", &self.stage.netns(container), "link", "show", "eth0"]).output();
        shown.expect("it runs").status.success()
    }
}

/// A host whose uplink leads to `far`, and a policy that includes the folder `tenants.d`.
pub fn lay_out(stage: &Stage) {
    let [host, far] = ["host", "far"].map(|name| stage.netns(name));
    ip(&["-n", &host, "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", &far]);
    ip(&["-n", &host, "link", "set", "up0", "up"]);
    ip(&["-n", &far, "address", "add", &format!("{FAR}/24"), "dev", "eth0"]);
    ip(&["-n", &far, "link", "set", "eth0", "up"]);
    fs::create_dir(stage.file("tenants.d")).expect("made");
    let policy = format!(
        "uplink: {{port: {{af_packet: up0}}, rate: 1Gbps}}\napi: {{socket: {}}}\ninclude: tenants.d\n",
        stage.file("api.sock").display()
    );
    fs::write(stage.file("policy.yaml"), policy).expect("written");
}

/// The daemon of such a host, once it answers.
pub fn run_daemon(stage: &Stage) -> Daemon {
    let daemon =
        Daemon::start(Some(&stage.netns("host")), &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    daemon
}

/// A configuration of host-local, whose gateway is `far`.
fn ipam(stage: &Stage) -> Value {
    json!({
        "type": "host-local", "dataDir": stage.file("ipam"),
        "ranges": [[{ "subnet": "10.9.0.0/24", "rangeStart": "10.9.0.50", "gateway": FAR }]],
        "routes": [{ "dst": "0.0.0.0/0" }],
    })
}

/// The tenants that the daemon has.
pub fn tenants(stage: &Stage) -> Vec<String> {
    let stats = stage.client().text("GET", "/v1/stats").expect("it answers");
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    stats["tenants"].as_object().expect("tenants").keys().cloned().collect()
}

/// The addresses that host-local has given.
fn taken(stage: &Stage) -> Vec<String> {
    let files = fs::read_dir(stage.file("ipam/lan")).expect("host-local's folder").flatten();
    let names = files.map(|entry| entry.file_name().into_string().unwrap_or_default());
    names.filter(|name| name.starts_with("10.")).collect()
}

fn address(answer: &Value) -> Ipv4Addr {
    let stated = answer["ips"][0]["address"].as_str().expect("an address");
    stated.split('/').next().and_then(|address| address.parse().ok()).expect("IPv4")
}

#[test]
fn two_containers_come_with_their_envelopes_and_go() {
    let Some(mut host) = Host::start("cni") else { return };
    let narrow = host.network(
        &json!({ "runtimeConfig": { "bandwidth": { "egressRate": 40_000_000, "egressBurst": 8_000 } } }),
    );
    let wide =
        host.network(&json!({ "args": { "cni": { "plimsoll": { "name": "shop", "min": "100Mbps" } } } }));
    let (a, b) = (host.succeeds("ADD", "a", &narrow), host.succeeds("ADD", "b", &wide));
    assert_eq!(a["interfaces"][0]["name"], "eth0");
    assert_eq!(a["interfaces"][0]["mac"].as_str().map(str::len), Some(17), "{a}");
    let tenants = host.tenants();
    assert!(tenants.len() == 2 && tenants.iter().any(|name| name.starts_with("shop-")), "{tenants:?}");
    assert_ne!(address(&a), address(&b));

    host.stage.eventually("a container reaches what is behind the uplink", || host.stage.ping("a", FAR, 56));
    host.stage.eventually("and the other container", || host.stage.ping("a", address(&b), 56));
    // 4 MB take at least 0.8 s at 40 Mb/s, less what the burst and the queues hold; the other has no such limit.
    let took = host.stage.transfer("a", "far", FAR, 4_000_000);
    assert!(took.as_secs_f64() > 0.6, "{took:?} for 4 MB");
    let wide_took = host.stage.transfer("b", "far", FAR, 4_000_000);
    assert!(wide_took < took, "{wide_took:?} without a limit, {took:?} with one");

    // The runtime keeps the answer, and asks whether it still holds.
    let kept = |answer: &Value| host.network(&json!({ "prevResult": answer }));
    host.succeeds("CHECK", "a", &kept(&a));
    let mut other = kept(&a);
    other["prevResult"]["ips"][0]["address"] = "10.9.0.7/24".into();
    let (code, said) = host.fails("CHECK", "a", &other);
    assert!(code == 101 && said.contains("10.9.0.7/24"), "{said}");

    let mut elsewhere = kept(&a);
    elsewhere["prevResult"]["routes"] = json!([{ "dst": "0.0.0.0/0", "gw": "10.9.0.7" }]);
    let (code, said) = host.fails("CHECK", "a", &elsewhere);
    assert!(code == 101 && said.contains("0.0.0.0/0 via 10.9.0.7"), "{said}");

    // Nothing is kept but the files, and a daemon that starts finds them.
    host.daemon = None;
    let (code, said) = host.fails("STATUS", "a", &host.network(&json!({})));
    assert!(code == 50 && said.contains("does not answer"), "{said}");
    host.run_daemon();
    host.stage.eventually("a restarted daemon serves the container", || host.stage.ping("a", FAR, 56));
    host.succeeds("STATUS", "a", &host.network(&json!({})));

    for _ in 0..2 {
        host.succeeds("DEL", "a", &narrow);
    }
    assert!(!host.has_interface("a") && host.has_interface("b"));
    assert_eq!(host.tenants().len(), 1);
    let (code, said) = host.fails("CHECK", "a", &narrow);
    assert!(code == 3, "{said}");
    host.succeeds("DEL", "b", &wide);
    assert_eq!((host.tenants().len(), host.files()), (0, 0));
    assert!(taken(&host.stage).is_empty(), "its addresses are free: {:?}", taken(&host.stage));
}

#[test]
fn a_call_that_fails_leaves_nothing_and_what_a_crash_left_goes() {
    let Some(host) = Host::start("cnif") else { return };
    let nothing = |why: &str| {
        assert_eq!((host.tenants().len(), host.files()), (0, 0), "{why}");
        assert!(!host.has_interface("a"), "{why}");
    };
    // Refused by the daemon, by the plugin, and by the IPAM plugin.
    let dear = host.network(&json!({ "tenant": { "min": "2Gbps" } }));
    let (code, said) = host.fails("ADD", "a", &dear);
    assert!(code == 100 && said.contains("min"), "{said}");
    nothing(&said);
    let sly = host.network(&json!({ "args": { "cni": { "plimsoll": { "policy": "/etc/shadow" } } } }));
    let (code, said) = host.fails("ADD", "a", &sly);
    assert!(code == 7 && said.contains("may not state `policy`"), "{said}");
    let full = json!({ "type": "host-local", "dataDir": host.stage.file("ipam"), "subnet": "nonsense" });
    let (_, said) = host.fails("ADD", "a", &host.network(&json!({ "ipam": full })));
    nothing(&said);
    let missing = host.network(&json!({ "ipam": { "type": "there-is-none" } }));
    let (code, said) = host.fails("ADD", "a", &missing);
    assert!(code == 7 && said.contains("containernetworking-plugins"), "{said}");
    let (code, said) = host.fails("ADD", "a", &host.network(&json!({ "cniVersion": "9.0.0" })));
    assert!(code == 1 && said.contains("1.1.0"), "{said}");

    // A container that was added twice, as after a crash, is there once; the address of the first call is free again.
    let network = host.network(&json!({}));
    let (first, second) = (host.succeeds("ADD", "a", &network), host.succeeds("ADD", "a", &network));
    assert_ne!(address(&first), address(&second), "host-local goes on with the next address");
    assert_eq!((host.tenants().len(), host.files()), (1, 1));

    // A namespace that went without a call does not keep others out.
    host.succeeds("ADD", "b", &network);
    ip(&["netns", "del", &host.stage.netns("b")]);
    host.stage.eventually("a container comes beside one that has gone", || {
        host.call("DEL", "a", &network).status.success() && host.call("ADD", "a", &network).status.success()
    });
    assert_eq!(host.files(), 1, "the file of the one that has gone is swept");
    assert_eq!(taken(&host.stage).len(), 1, "and its address is free: {:?}", taken(&host.stage));

    // The runtime's list of valid attachments is the truth.
    let listed = json!({ "cniVersion": "1.1.0", "ipam": {}, "cni.dev/valid-attachments": [{ "containerID": "a", "ifname": "eth0" }] });
    host.succeeds("GC", "a", &host.network(&listed));
    assert_eq!(host.files(), 1);
    let none = json!({ "cniVersion": "1.1.0", "ipam": {}, "cni.dev/valid-attachments": [] });
    host.succeeds("GC", "a", &host.network(&none));
    nothing("no attachment is valid");
}

#[test]
fn behind_bridge_a_container_keeps_its_interface() {
    let Some(host) = Host::start("cnib") else { return };
    let on_host = |args: &[&str]| ip(&[&["-n", &host.stage.netns("host")], args].concat());
    // The uplink leads into the bridge in place of the network of `far`.
    ip(&[
        "-n",
        &host.stage.netns("far"),
        "link",
        "set",
        "eth0",
        "netns",
        &host.stage.netns("host"),
        "name",
        "up1",
    ]);
    on_host(&["link", "add", "br0", "type", "bridge"]);
    on_host(&["link", "set", "up1", "master", "br0", "up"]);
    on_host(&["link", "set", "up0", "arp", "off"]);
    let bridge = host.network(&json!({
        "type": "bridge", "bridge": "br0", "isGateway": true,
        "ipam": { "type": "host-local", "dataDir": host.stage.file("ipam"), "subnet": "10.9.0.0/24" },
    }));
    let made = host.call_plugin(&Path::new(PLUGINS).join("bridge"), "ADD", "a", &bridge);
    let previous: Value = serde_json::from_slice(&made.stdout).expect("a result");
    let gateway =
        previous["ips"][0]["gateway"].as_str().and_then(|address| address.parse().ok()).expect("IPv4");
    host.stage.eventually("it reaches its gateway by the bridge", || host.stage.ping("a", gateway, 56));

    let chained = |more: &Value| {
        let mut network = host.network(&json!({ "prevResult": previous, "ipam": {} }));
        network.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        network
    };
    let (code, said) = host.fails("ADD", "a", &chained(&json!({ "tenant": { "min": "2Gbps" } })));
    assert!(code == 100 && said.contains("min"), "{said}");
    assert!(host.stage.ping("a", gateway, 56), "it is in its bridge again");
    let network = chained(&json!({ "tenant": { "max": "40Mbps" } }));
    for _ in 0..2 {
        assert_eq!(host.succeeds("ADD", "a", &network), previous, "the result of the plugin before");
    }
    host.stage.eventually("it reaches its gateway by the engine", || host.stage.ping("a", gateway, 56));
    // Counters are read at most twenty times a second.
    host.stage.eventually("the engine has counted its packets", || {
        let stats = host.stage.client().text("GET", "/v1/stats").expect("it answers");
        let stats: Value = serde_json::from_str(&stats).expect("JSON");
        let tenants = stats["tenants"].as_object().expect("tenants");
        tenants.values().any(|tenant| tenant["rx_packets"].as_u64() > Some(0))
    });
    host.succeeds("CHECK", "a", &network);
    let shown = Command::new("ip")
        .args(["-n", &host.stage.netns("host"), "-o", "link", "show", "type", "veth"])
        .output();
    let shown = String::from_utf8_lossy(&shown.expect("it runs").stdout).into_owned();
    let mut veths = shown.lines().filter_map(|line| line.split(": ").nth(1)?.split('@').next());
    let end = veths.find(|name| !name.starts_with("up")).expect("the host's end");
    on_host(&["link", "set", end, "master", "br0"]);
    let (code, said) = host.fails("CHECK", "a", &network);
    assert!(code == 101 && said.contains("in the bridge `br0` again"), "{said}");
    host.succeeds("DEL", "a", &network);
    assert_eq!((host.tenants().len(), host.files()), (0, 0));

    // What another plugin has made without a bridge goes past the engine.
    on_host(&[
        "link",
        "add",
        "other",
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "netns",
        &host.stage.netns("b"),
    ]);
    let (code, said) = host.fails("ADD", "b", &network);
    assert!(code == 7 && said.contains("in no bridge") && said.contains("behind `bridge`"), "{said}");
}

/// A container's owner states keys by the three ways that runtimes have; other plugins are spared them.
#[test]
fn a_containers_owner_states_its_envelope() {
    let Some(host) = Host::start("cnio") else { return };
    let annotations = json!({ "plimsoll.io/weight": "3", "other.io/max": "1Mbps" });
    let network = host.network(&json!({
        "tenant": { "max": "500Mbps" },
        "args": { "cni": { "plimsoll": { "min": "5Mbps" } } },
        "runtimeConfig": { "io.kubernetes.cri.pod-annotations": annotations },
    }));
    let plugin = host.stage.file("plimsoll-cni");
    let netns = format!("/run/netns/{}", host.stage.netns("a"));
    let args = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;IgnoreUnknown=1;PLIMSOLL_MAX=40Mbps";
    let added =
        host.spawn(&plugin, "ADD", ("a", &netns), args, &network).wait_with_output().expect("it ends");
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stdout));
    let tenants = host.tenants();
    assert!(tenants.len() == 1 && tenants[0].starts_with("ns.web-"), "{tenants:?}");
    let folder = fs::read_dir(host.stage.file("tenants.d")).expect("the folder").flatten();
    let file = folder.map(|entry| entry.path()).find(|path| path.extension().is_some()).expect("a file");
    let text = fs::read_to_string(file).expect("readable");
    for line in ["max: \"40Mbps\"", "min: \"5Mbps\"", "weight: 3"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    host.succeeds("DEL", "a", &network);
    let strict =
        host.network(&json!({ "owners": ["min"], "args": { "cni": { "plimsoll": { "max": "1Gbps" } } } }));
    let (code, said) = host.fails("ADD", "a", &strict);
    assert!(code == 7 && said.contains("may not state `max`") && said.contains("may state: min"), "{said}");
    host.succeeds("DEL", "a", &strict);
}

#[test]
fn a_call_that_is_killed_is_made_up_for_by_the_next() {
    let Some(host) = Host::start("cnik") else { return };
    let network = host.network(&json!({}));
    let (plugin, netns) = (host.stage.file("plimsoll-cni"), format!("/run/netns/{}", host.stage.netns("a")));
    for millis in 0..24 {
        let command = if millis % 3 == 2 { "DEL" } else { "ADD" };
        let mut killed = host.spawn(&plugin, command, ("a", &netns), "", &network);
        std::thread::sleep(Duration::from_millis(millis));
        killed.kill().expect("killed");
        killed.wait().expect("it ends");
        host.succeeds("ADD", "a", &network);
        assert_eq!((host.tenants().len(), host.files()), (1, 1), "{command} after {millis} ms");
        if millis % 2 == 0 {
            host.succeeds("DEL", "a", &network);
            assert_eq!((host.tenants().len(), host.files()), (0, 0), "{command} after {millis} ms");
        }
    }
}

/// A process's number may be another process's after it has gone: its namespace has a name of its own meanwhile.
#[test]
fn a_namespace_known_by_a_process_keeps_its_name() {
    let Some(host) = Host::start("cnin") else { return };
    let network = host.network(&json!({}));
    let mut process = host.stage.command("a", "sleep").arg("60").spawn().expect("it runs");
    let netns = format!("/proc/{}/ns/net", process.id());
    let plugin = host.stage.file("plimsoll-cni");
    let call = |command: &str| {
        // Other tests beside this one have a container `a`, and the names in /run/netns are everyone's.
        let call = host.spawn(&plugin, command, ("pinned", &netns), "", &network);
        let done = call.wait_with_output().expect("it ends");
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stdout));
    };
    host.stage.eventually("the process is in its namespace", || {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
        let its = of(&process.id().to_string());
        its.is_some() && its != of("self")
    });
    call("ADD");
    assert!(host.has_interface("a"));
    let folder = fs::read_dir(host.stage.file("tenants.d")).expect("the folder").flatten();
    let file = folder.map(|entry| entry.path()).find(|path| path.extension().is_some()).expect("a file");
    let text = fs::read_to_string(file).expect("readable");
    let name =
        text.lines().find_map(|line| line.strip_prefix("# namespace: ")).expect("its place").to_owned();
    assert!(name.starts_with("/run/netns/plimsoll-") && Path::new(&name).exists(), "{name}");
    process.kill().expect("killed");
    process.wait().expect("it ends");
    call("DEL");
    assert!(!host.has_interface("a") && !Path::new(&name).exists(), "{name}");
}

#[test]
fn what_a_configuration_leaves_out_is_left_out() {
    let Some(mut host) = Host::start("cnil") else { return };
    // Without addresses the container sets its own.
    let bare = host.network(&json!({ "ipam": {}, "args": null, "runtimeConfig": null }));
    let added = host.succeeds("ADD", "a", &bare);
    assert!(added["ips"].as_array().is_some_and(Vec::is_empty) && host.has_interface("a"), "{added}");
    host.succeeds("CHECK", "a", &host.network(&json!({ "ipam": {}, "prevResult": added })));
    host.succeeds("DEL", "a", &bare);
    let routes = host.network(&json!({}));
    let mut without = routes.clone();
    without["ipam"].as_object_mut().expect("an object").remove("routes");
    host.succeeds("ADD", "a", &without);
    host.succeeds("DEL", "a", &without);
    let (code, said) = host.fails("GC", "a", &host.network(&json!({ "cniVersion": "1.1.0", "ipam": {} })));
    assert!(code == 7 && said.contains("valid-attachments"), "{said}");
    // A policy that does not include the folder.
    let policy = host.stage.read("policy.yaml");
    let policy = policy.replace("include: tenants.d\n", "");
    fs::write(host.stage.file("policy.yaml"), policy).expect("written");
    host.daemon = None;
    host.run_daemon();
    let (code, said) = host.fails("ADD", "a", &routes);
    assert!(code == 7 && said.contains("does not include"), "{said}");
    assert_eq!(host.files(), 0);
    fs::remove_dir_all(host.stage.file("tenants.d")).expect("removed");
    host.succeeds("DEL", "a", &routes);
}

#[test]
fn an_address_that_another_tenant_has_is_told() {
    let Some(host) = Host::start("cnid") else { return };
    let network = host.network(&json!({}));
    host.succeeds("ADD", "a", &network);
    // Another network of the operator's gives the same addresses.
    let other = host.network(&json!({ "name": "wan" }));
    let done = host.call("ADD", "b", &other);
    let warned = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        done.status.success() && warned.contains("name-clash") && warned.contains("10.9.0.50"),
        "{warned}"
    );
    assert!(serde_json::from_slice::<Value>(&done.stdout).is_ok(), "and the answer is JSON alone");
}

#[test]
fn calls_at_once_do_not_hinder_each_other() {
    let Some(host) = Host::start("cnip") else { return };
    let network = host.network(&json!({}));
    for round in 0..3 {
        for command in ["ADD", "DEL"] {
            let answers: Vec<Output> = std::thread::scope(|scope| {
                let calls =
                    ["a", "b"].map(|container| scope.spawn(|| host.call(command, container, &network)));
                calls.map(|call| call.join().expect("no panic")).into()
            });
            for done in answers {
                let said = String::from_utf8_lossy(&done.stdout);
                assert!(done.status.success(), "{command}, round {round}: {said}");
            }
            let expected = if command == "ADD" { 2 } else { 0 };
            assert_eq!((host.tenants().len(), host.files()), (expected, expected));
        }
    }
}

#[test]
fn the_plugin_says_what_it_is_and_what_it_speaks() {
    let folder = tempfile::tempdir().expect("a folder");
    let plugin = folder.path().join("plimsoll-cni");
    symlink(env!("CARGO_BIN_EXE_plimsoll"), &plugin).expect("linked");
    let bare = Command::new(&plugin).env_remove("CNI_COMMAND").output().expect("it runs");
    assert!(bare.status.success() && String::from_utf8_lossy(&bare.stdout).contains("a CNI plugin"));
    let run = |command: &str, text: &str| {
        let mut process = Command::new(&plugin)
            .env("CNI_COMMAND", command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        process.stdin.take().expect("piped").write_all(text.as_bytes()).expect("written");
        let done = process.wait_with_output().expect("it ends");
        let answer: Value = serde_json::from_slice(&done.stdout).expect("JSON");
        (done.status.success(), answer)
    };
    let (fine, answer) = run("VERSION", r#"{"cniVersion": "0.4.0"}"#);
    assert!(fine && answer["cniVersion"] == "0.4.0", "{answer}");
    assert!(
        answer["supportedVersions"].as_array().is_some_and(|known| known.contains(&"1.1.0".into())),
        "{answer}"
    );
    for (command, text, code) in [
        ("NONSENSE", r#"{"cniVersion": "1.0.0", "name": "lan"}"#, 4),
        ("ADD", "no json", 6),
        ("ADD", r#"{"cniVersion": "1.0.0", "name": ""}"#, 7),
        ("ADD", r#"{"cniVersion": "1.0.0", "name": "lan"}"#, 4),
    ] {
        let (fine, answer) = run(command, text);
        assert!(!fine && answer["code"] == code && answer["msg"].is_string(), "{command} {text}: {answer}");
    }
}
