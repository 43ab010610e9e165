//! Docker's network plugin, called as Docker calls it.
//!
//! Needs root (network namespaces). Docker itself calls it in `engines`.

mod engines;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cni::{FAR, lay_out, run_daemon, tenants};
use crate::support::{Daemon, PATIENCE, Stage, ip};

const NETWORK: &str = "aaaaaaaaaaaaaaaa";

/// The plugin, which is killed at last.
pub struct Plugin {
    process: Child,
}

impl Plugin {
    /// Starts it in the namespace `host`, and waits until it listens at `socket`.
    pub fn start(stage: &Stage, socket: &Path) -> Self {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", stage.netns("host"))).arg(env!("CARGO_BIN_EXE_plimsoll"));
        command.arg("docker-plugin").arg("--listen").arg(socket).arg("--socket").arg(stage.file("api.sock"));
        command.arg("--tenants").arg(stage.file("tenants.d")).arg("--state").arg(stage.file("docker-state"));
        let log = fs::File::options().append(true).create(true).open(stage.file("plugin.log"));
        let process = command.stdin(Stdio::null()).stderr(log.expect("a log")).spawn().expect("started");
        stage.eventually("the plugin listens", || UnixStream::connect(socket).is_ok());
        Self { process }
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A host whose uplink leads to `far`, its daemon, and the plugin.
struct Host {
    stage: Stage,
    plugin: Option<Plugin>,
    daemon: Option<Daemon>,
}

impl Host {
    fn start(tag: &str) -> Option<Self> {
        let stage = Stage::with_netns(tag, &["host", "far", "a"])?;
        lay_out(&stage);
        let mut host = Self { stage, plugin: None, daemon: None };
        host.run_daemon();
        host.run_plugin();
        Some(host)
    }

    fn run_daemon(&mut self) {
        self.daemon = Some(run_daemon(&self.stage));
    }

    /// Starts the plugin, in place of one that is killed.
    fn run_plugin(&mut self) {
        self.plugin = None;
        self.plugin = Some(Plugin::start(&self.stage, &self.stage.file("plugin.sock")));
    }

    /// Calls the plugin; its status and answer.
    fn post(&self, path: &str, body: &str) -> (u16, Value) {
        let mut socket = UnixStream::connect(self.stage.file("plugin.sock")).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
        let len = body.len();
        write!(
            socket,
            "POST {path} HTTP/1.1\r\nHost: p\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}"
        )
        .expect("it reads");
        let mut said = String::new();
        socket.read_to_string(&mut said).expect("it answers");
        let status = said.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let body = said.split_once("\r\n\r\n").expect("a body").1;
        (status, serde_json::from_str(body).expect("JSON"))
    }

    fn call(&self, name: &str, body: &Value) -> Result<Value, String> {
        let (status, answer) = self.post(&format!("/NetworkDriver.{name}"), &body.to_string());
        if status == 200 { Ok(answer) } else { Err(answer["Err"].as_str().expect("words").to_owned()) }
    }

    fn succeeds(&self, name: &str, body: &Value) -> Value {
        self.call(name, body).unwrap_or_else(|why| panic!("{name}: {why}\n{}", self.stage.read("log")))
    }

    fn create_network(&self, options: &Value) -> Result<Value, String> {
        let pool = json!([{ "AddressSpace": "LocalDefault", "Gateway": format!("{FAR}/24"), "Pool": "10.9.0.0/24" }]);
        let options =
            json!({ "com.docker.network.enable_ipv6": false, "com.docker.network.generic": options });
        let stated = json!({ "NetworkID": NETWORK, "Options": options, "IPv4Data": pool, "IPv6Data": null });
        self.call("CreateNetwork", &stated)
    }

    fn create(&self, endpoint: &str, address: &str, options: &Value) -> Result<Value, String> {
        let interface = json!({ "Address": address, "AddressIPv6": "", "MacAddress": "" });
        let stated = json!({ "NetworkID": NETWORK, "EndpointID": endpoint, "Interface": interface, "Options": options });
        self.call("CreateEndpoint", &stated)
    }

    /// Joins, and moves the interface into the container `a`, as Docker does.
    fn join(&self, endpoint: &str, address: &str) {
        let answer = self.succeeds("Join", &of(endpoint));
        let (host, container) = (self.stage.netns("host"), self.stage.netns("a"));
        let name = answer["InterfaceName"]["SrcName"].as_str().expect("a name");
        ip(&["-n", &host, "link", "set", name, "netns", &container, "name", "eth0"]);
        ip(&["-n", &container, "address", "add", address, "dev", "eth0"]);
        ip(&["-n", &container, "link", "set", "eth0", "up"]);
        assert_eq!(
            (answer["Gateway"].as_str(), answer["DisableGatewayService"].as_bool()),
            (Some("10.9.0.1"), Some(true))
        );
    }

    /// Files of tenants, records, and interfaces of endpoints.
    fn left(&self) -> (usize, usize, usize) {
        let count = |folder: &str, begin: &str| {
            let entries = fs::read_dir(self.stage.file(folder)).expect("the folder").flatten();
            entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(begin)).count()
        };
        let shown = Command::new("ip").args(["-n", &self.stage.netns("host"), "-br", "link"]).output();
        let shown = String::from_utf8_lossy(&shown.expect("it runs").stdout).into_owned();
        let links = shown.lines().filter(|line| line.starts_with("plh")).count();
        (count("tenants.d", "docker-"), count("docker-state", "endpoint-"), links)
    }
}

fn of(endpoint: &str) -> Value {
    json!({ "NetworkID": NETWORK, "EndpointID": endpoint, "SandboxKey": "/var/run/docker/netns/x", "Options": {} })
}

#[test]
fn an_endpoint_is_a_tenant_from_join_to_leave() {
    let Some(mut host) = Host::start("dkp") else { return };
    let activated = host.post("/Plugin.Activate", "");
    assert_eq!(activated, (200, json!({ "Implements": ["NetworkDriver"] })));
    host.create_network(&json!({ "plimsoll.max": "40Mbps" })).expect("made");
    let made =
        host.create("bbbbbbbbbbbbbbbb", "10.9.0.50/24", &json!({ "plimsoll.name": "shop" })).expect("made");
    assert_eq!(made["Interface"]["MacAddress"].as_str().map(str::len), Some(17), "{made}");
    assert_eq!(host.left(), (0, 1, 0), "no tenant before its container joins");
    host.run_plugin();
    host.join("bbbbbbbbbbbbbbbb", "10.9.0.50/24");
    assert_eq!(tenants(&host.stage), ["shop-bbbbbbbbbbbb"]);
    let info = host.succeeds("EndpointOperInfo", &of("bbbbbbbbbbbbbbbb"));
    assert_eq!(info["Value"]["plimsoll.tenant"], "shop-bbbbbbbbbbbb");
    host.stage.eventually("it reaches what is behind the uplink", || host.stage.ping("a", FAR, 56));
    // 4 MB take at least 0.8 s at 40 Mb/s, less what the burst and the queues hold.
    let took = host.stage.transfer("a", "far", FAR, 4_000_000);
    assert!(took > Duration::from_millis(600), "{took:?} for 4 MB");

    // Neither the plugin nor the daemon is missed for long.
    host.run_plugin();
    assert!(host.stage.ping("a", FAR, 56), "the plugin carries no packets");
    host.daemon = None;
    host.run_daemon();
    host.stage.eventually("a restarted daemon serves it", || host.stage.ping("a", FAR, 56));

    for _ in 0..2 {
        host.succeeds("Leave", &of("bbbbbbbbbbbbbbbb"));
    }
    assert_eq!((tenants(&host.stage).len(), host.left()), (0, (0, 1, 1)));
    for _ in 0..2 {
        host.succeeds("DeleteEndpoint", &of("bbbbbbbbbbbbbbbb"));
    }
    assert_eq!(host.left(), (0, 0, 0));
    host.succeeds("DeleteNetwork", &json!({ "NetworkID": NETWORK }));
    let gone = host.create("bbbbbbbbbbbbbbbb", "10.9.0.50/24", &json!({})).expect_err("there is no network");
    assert!(gone.contains("docker network create"), "{gone}");
}

#[test]
fn what_docker_has_forgotten_goes() {
    let Some(mut host) = Host::start("dkf") else { return };
    host.create_network(&json!({})).expect("made");
    // Docker was ended between CreateEndpoint and Join, and after Join; then it gives the address to others.
    for endpoint in ["bbbbbbbbbbbb", "cccccccccccc", "dddddddddddd"] {
        host.create(endpoint, "10.9.0.50/24", &json!({})).expect("made");
        if endpoint != "bbbbbbbbbbbb" {
            host.succeeds("Join", &of(endpoint));
            // Again, as after a crash.
            host.succeeds("Join", &of(endpoint));
        }
        assert_eq!(host.left().1, 1, "only {endpoint} is left");
        host.run_plugin();
    }
    assert_eq!((tenants(&host.stage), host.left()), (vec!["docker-dddddddddddd".to_owned()], (1, 1, 1)));

    // A machine that starts again has no interfaces, and its daemon would refuse to reload without them.
    ip(&["-n", &host.stage.netns("host"), "link", "del", "plhdddddddddddd"]);
    host.daemon = None;
    host.run_daemon();
    host.create("eeeeeeeeeeee", "10.9.0.51/24", &json!({})).expect("made");
    host.succeeds("Join", &of("eeeeeeeeeeee"));
    assert_eq!(tenants(&host.stage), ["docker-eeeeeeeeeeee"], "{}", host.stage.read("plugin.log"));

    // The daemon's refusal is the container's.
    host.create("ffffffffffff", "10.9.0.52/24", &json!({ "plimsoll.min": "2gbps" })).expect("made");
    let why = host.call("Join", &of("ffffffffffff")).expect_err("refused");
    assert!(why.contains("refused") && why.contains("min"), "{why}");
    assert_eq!((tenants(&host.stage).len(), host.left().0, host.left().2), (1, 1, 1));
    host.succeeds("DeleteNetwork", &json!({ "NetworkID": NETWORK }));
    assert_eq!((tenants(&host.stage).len(), host.left()), (0, (0, 0, 0)));
}

#[test]
fn a_call_that_makes_no_sense_is_answered() {
    let Some(host) = Host::start("dkh") else { return };
    for (path, body, status) in [
        ("/NetworkDriver.CreateNetwork", "", 400),
        ("/NetworkDriver.CreateNetwork", "[]", 400),
        ("/NetworkDriver.CreateNetwork", "{\"NetworkID\": 7}", 400),
        ("/NetworkDriver.CreateNetwork", "{\"NetworkID\": \"../../../../etc/cron.d/x\"}", 400),
        (
            "/NetworkDriver.CreateNetwork",
            "{\"NetworkID\": \"aaaaaaaaaaaaaaaa\", \"IPv4Data\": [{\"Gateway\": \"x\"}]}",
            400,
        ),
        (
            "/NetworkDriver.CreateEndpoint",
            "{\"NetworkID\": \"aaaaaaaaaaaaaaaa\", \"EndpointID\": \"b\"}",
            400,
        ),
        ("/NetworkDriver.Join", "{\"EndpointID\": \"bbbbbbbbbbbbbbbb\"}", 500),
        ("/NetworkDriver.Nonsense", "{}", 404),
        ("/", "\u{0}", 404),
    ] {
        let (found, answer) = host.post(path, body);
        assert!(found == status && answer["Err"].is_string(), "{path} {body}: {found} {answer}");
    }
    let deep = "[".repeat(500_000);
    assert_eq!(host.post("/NetworkDriver.Join", &deep).0, 400);
    let sly = host.create_network(&json!({ "plimsoll.policy": "/etc/shadow" })).expect_err("refused");
    assert!(sly.contains("may not state `policy`"), "{sly}");
    let slip = host.create_network(&json!({ "plimsoll.max": "fast" })).expect_err("refused");
    assert!(slip.contains("`fast`, not a rate"), "{slip}");
    for name in
        ["DiscoverNew", "DiscoverDelete", "ProgramExternalConnectivity", "AllocateNetwork", "FreeNetwork"]
    {
        host.succeeds(name, &json!({}));
    }
    assert_eq!(host.succeeds("GetCapabilities", &json!({}))["Scope"], "local");
}
