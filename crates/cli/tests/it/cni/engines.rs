//! The plugin as container engines call it: Podman on its CNI backend, containerd's `ctr`, and CNI's own `cnitool`.
//!
//! No image is fetched: the containers' file system is a static busybox. Each engine runs in a network namespace of the
//! test. Tried where the programs are installed (`make containers`).

use std::fs;
use std::io::Read;
use std::net::{SocketAddrV4, TcpListener};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{FAR, PLUGINS, ipam, lay_out, tenants};
use crate::attach::engines::Engine;
use crate::attach::said;
use crate::support::{Daemon, PATIENCE, Stage, ip};

/// The rate of each container, and what it sends: 0.8 s less what the burst and the queues hold.
pub const RATE: &str = "40Mbps";
const BYTES: usize = 4_000_000;
pub const AT_LEAST: Duration = Duration::from_millis(600);

/// A host whose uplink leads to `far`, its daemon, and the network `plimsoll` in a folder of networks.
fn prepare(stage: &Stage) -> Daemon {
    stage.add_netns("far");
    lay_out(stage);
    for folder in ["net.d", "plugins"] {
        fs::create_dir(stage.file(folder)).expect("made");
    }
    symlink(env!("CARGO_BIN_EXE_plimsoll"), stage.file("plugins/plimsoll-cni")).expect("linked");
    for plugin in ["host-local", "loopback"] {
        let place = stage.file("plugins").join(plugin);
        symlink(PathBuf::from(PLUGINS).join(plugin), place).expect("linked");
    }
    let network = json!({
        "cniVersion": "0.4.0", "name": "plimsoll",
        "plugins": [{
            "type": "plimsoll-cni", "tenant": { "max": RATE },
            "socket": stage.file("api.sock"), "tenants": stage.file("tenants.d"),
            "ipam": ipam(stage),
        }],
    });
    fs::write(stage.file("net.d/plimsoll.conflist"), network.to_string()).expect("written");
    let daemon =
        Daemon::start(Some(&stage.netns("host")), &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    daemon
}

/// The time that `send` needs for what arrives at `far`, which must be all of it.
pub fn time_of(stage: &Stage, send: impl FnOnce() -> Output) -> Duration {
    let listener = stage.inside("far", || TcpListener::bind(SocketAddrV4::new(FAR, 7_001)).expect("bound"));
    let listener = listener.join().expect("listening");
    let receiver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let begun = Instant::now();
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).map(|count| (count, begun.elapsed()))
    });
    let done = send();
    assert!(done.status.success(), "{}", said(&done));
    let (count, took) = receiver.join().expect("no panic").expect("received");
    assert_eq!(count, BYTES);
    took
}

/// What a container runs to send [`BYTES`] to `far`.
pub fn sending() -> String {
    format!(
        "busybox dd if=/dev/zero bs=1000000 count={} 2>/dev/null | busybox nc {FAR} 7001",
        BYTES / 1_000_000
    )
}

/// Two containers come, keep to their envelopes, start again and go. `run` runs a command in a container, given its name.
pub fn two_containers(
    stage: &Stage,
    start: impl Fn(&str) -> Output,
    run: impl Fn(&str, &[&str]) -> Output,
    restart: impl Fn(&str) -> Output,
    remove: impl Fn(&str) -> Output,
) {
    for name in ["shop", "batch"] {
        let started = start(name);
        assert!(started.status.success(), "{}\n{}", said(&started), stage.read("log"));
    }
    assert_eq!(tenants(stage).len(), 2, "{}", stage.read("log"));
    let reaches = |name: &str| run(name, &["ping", "-c", "1", "-W", "1", &FAR.to_string()]).status.success();
    for name in ["shop", "batch"] {
        stage.eventually(&format!("{name} reaches what is behind the uplink"), || reaches(name));
        let took = time_of(stage, || run(name, &["sh", "-c", &sending()]));
        assert!(took > AT_LEAST, "{name}: {took:?}");
    }
    let restarted = restart("shop");
    assert!(restarted.status.success(), "{}", said(&restarted));
    stage.eventually("it is there again", || reaches("shop"));
    let took = time_of(stage, || run("shop", &["sh", "-c", &sending()]));
    assert!(took > AT_LEAST, "after a restart: {took:?}");
    assert_eq!(tenants(stage).len(), 2, "the old tenant has gone");
    for name in ["shop", "batch"] {
        let removed = remove(name);
        assert!(removed.status.success(), "{}", said(&removed));
    }
    assert!(tenants(stage).is_empty(), "{:?}", tenants(stage));
    let left = fs::read_dir(stage.file("tenants.d")).expect("the folder").flatten();
    assert_eq!(left.filter(|entry| entry.path().extension().is_some_and(|end| end == "yaml")).count(), 0);
}

#[test]
fn podman_attaches_and_detaches_containers() {
    let Some(mut engine) = Engine::new("podman", &[&format!("{PLUGINS}/host-local")], "cnp") else { return };
    let _daemon = prepare(&engine.stage);
    let network = format!(
        "[network]\nnetwork_backend = \"cni\"\nnetwork_config_dir = {:?}\ncni_plugin_dirs = [{:?}]\n",
        engine.stage.file("net.d"),
        engine.stage.file("plugins")
    );
    engine.use_podman_apart(&network);
    let root = engine.stage.file("rootfs").display().to_string();
    let start = |name: &str| {
        engine.run(&[
            "run",
            "-d",
            "--name",
            name,
            "--network",
            "plimsoll",
            "--rootfs",
            &root,
            "/bin/sleep",
            "600",
        ])
    };
    let run = |name: &str, words: &[&str]| engine.run(&[&["exec", name], words].concat());
    let restart = |name: &str| engine.run(&["restart", "-t", "0", name]);
    let remove = |name: &str| engine.run(&["rm", "-f", "-t", "0", name]);
    two_containers(&engine.stage, start, run, restart, remove);
}

#[test]
fn containerd_attaches_and_detaches_containers() {
    let needs = ["containerd", "runc", &format!("{PLUGINS}/host-local")];
    let Some(mut engine) = Engine::new("ctr", &needs, "cnc") else { return };
    let _daemon = prepare(&engine.stage);
    let stage = &engine.stage;
    // `ctr` knows these folders only; they are this test's in the mount namespace that `scripts/apart` has made.
    for (folder, place) in [("net.d", "/etc/cni/net.d"), ("plugins", "/opt/cni/bin")] {
        let mount = format!("mkdir -p {place} && mount --bind {} {place}", stage.file(folder).display());
        assert!(Command::new("sh").args(["-c", &mount]).status().expect("it runs").success());
    }
    let at = |name: &str| stage.file(name).display().to_string();
    let config = format!(
        "version = 2\nroot = {:?}\nstate = {:?}\n[grpc]\naddress = {:?}\n",
        at("data"),
        at("run"),
        at("containerd.sock")
    );
    fs::write(stage.file("containerd.toml"), config).expect("written");
    let mut command = engine.command("containerd");
    command.arg("--config").arg(stage.file("containerd.toml")).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(fs::File::create(stage.file("containerd.log")).expect("a log"));
    engine.daemon = Some(command.spawn().expect("started"));
    let address = at("containerd.sock");
    engine.env.push(("CONTAINERD_ADDRESS", address.into()));
    engine.stage.eventually("containerd answers", || engine.run(&["version"]).status.success());
    let root = engine.stage.file("rootfs").display().to_string();
    let run = |name: &str, script: &str| {
        let mut command = engine.command("ctr");
        command.args(["run", "--rm", "--cni", "--rootfs", &root, name, "/bin/sh", "-c", script]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut batch = run("batch", "sleep 600").spawn().expect("started");
    engine.stage.eventually("a container is a tenant", || tenants(&engine.stage).len() == 1);
    // Twice, as a container that starts again has the same name.
    for _ in 0..2 {
        let script = format!("until ping -c 1 -W 1 {FAR} >/dev/null; do :; done; {}", sending());
        let took = time_of(&engine.stage, || run("shop", &script).output().expect("it runs"));
        assert!(took > AT_LEAST, "{took:?}");
        assert_eq!(tenants(&engine.stage).len(), 1, "the container that has ended is none");
    }
    let killed = engine.run(&["task", "kill", "-s", "KILL", "batch"]);
    assert!(killed.status.success(), "{}", said(&killed));
    batch.wait().expect("it ends");
    assert!(tenants(&engine.stage).is_empty(), "{:?}", tenants(&engine.stage));
}

#[test]
fn cnitool_adds_checks_and_removes() {
    let Some(engine) = Engine::new("cnitool", &[&format!("{PLUGINS}/host-local")], "cnt") else { return };
    let stage = &engine.stage;
    let _daemon = prepare(stage);
    stage.add_netns("c");
    let netns = format!("/run/netns/{}", stage.netns("c"));
    let cnitool = |verb: &str| {
        let mut command = Command::new("cnitool");
        command.env("NETCONFPATH", stage.file("net.d")).env("CNI_PATH", stage.file("plugins"));
        command.args([verb, "plimsoll", &netns]).output().expect("it runs")
    };
    for verb in ["add", "check"] {
        let done = cnitool(verb);
        assert!(done.status.success(), "{verb}: {}\n{}", said(&done), stage.read("log"));
    }
    stage.eventually("it reaches what is behind the uplink", || stage.ping("c", FAR, 56));
    let took = stage.transfer("c", "far", FAR, BYTES);
    assert!(took > AT_LEAST, "{took:?}");
    ip(&["-n", &stage.netns("c"), "address", "flush", "dev", "eth0"]);
    let done = cnitool("check");
    assert!(!done.status.success() && said(&done).contains("has not the address"), "{}", said(&done));
    let done = cnitool("del");
    assert!(done.status.success(), "{}", said(&done));
    assert!(tenants(stage).is_empty(), "{:?}", tenants(stage));
}
