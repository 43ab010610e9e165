//! Containers of Docker and Podman.
//!
//! No image is fetched: the container's file system is a static busybox. Each engine runs in a network namespace of the
//! test, so its bridge and rules are not the host's.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;

use crate::support::{Daemon, Stage, ip};

use super::said;

/// A container engine with a state of its own, in a network namespace of its own.
pub struct Engine {
    pub stage: Stage,
    program: &'static str,
    pub env: Vec<(&'static str, PathBuf)>,
    pub daemon: Option<Child>,
}

impl Engine {
    /// `None` where the engine or busybox is not installed: most machines have at most one of them.
    pub fn new(program: &'static str, needs: &[&str], tag: &str) -> Option<Self> {
        for needed in [&[program, "busybox", "nsenter"], needs].concat() {
            let found = Command::new("sh").args(["-c", &format!("command -v {needed}")]).output();
            if !found.is_ok_and(|found| found.status.success()) {
                eprintln!("skipped: {needed} is not installed");
                return None;
            }
        }
        let stage = Stage::with_netns(tag, &["host"])?;
        show_control_groups();
        let root = stage.file("rootfs");
        ["bin", "dev", "proc", "sys", "etc", "tmp", "run"]
            .iter()
            .for_each(|name| fs::create_dir_all(root.join(name)).expect("a folder"));
        let busybox = Command::new("sh").args(["-c", "command -v busybox"]).output().expect("found");
        fs::copy(String::from_utf8_lossy(&busybox.stdout).trim(), root.join("bin/busybox")).expect("copied");
        ["sh", "sleep", "ip", "ping"]
            .iter()
            .for_each(|name| symlink("busybox", root.join("bin").join(name)).expect("linked"));
        Some(Self { stage, program, env: Vec::new(), daemon: None })
    }

    /// A command in the engine's network namespace. `ip netns exec` would hide the control groups.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.stage.netns("host"))).arg(program);
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(self.program).args(args).output().expect("it runs")
    }

    /// Gives Podman a state of its own; `network` is a part of its configuration.
    pub fn use_podman_apart(&mut self, network: &str) {
        let stage = &self.stage;
        let (data, run) = (stage.file("data"), stage.file("run"));
        let storage = format!("[storage]\ndriver = \"overlay\"\ngraphroot = {data:?}\nrunroot = {run:?}\n");
        fs::write(stage.file("storage.conf"), storage).expect("written");
        // Limits that a container may be given without the privilege to raise them.
        let limits = "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=512:512\"]\n";
        let engine_part =
            "[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n";
        fs::write(stage.file("containers.conf"), [limits, engine_part, network].concat()).expect("written");
        let settings = [
            ("CONTAINERS_STORAGE_CONF", stage.file("storage.conf")),
            ("CONTAINERS_CONF", stage.file("containers.conf")),
        ];
        self.env.extend(settings);
    }

    /// Starts Docker with a state of its own, and gives it the image `busybox`; returns what the import says.
    pub fn start_docker(&mut self, options: &[&str]) -> Output {
        let socket = format!("unix://{}", self.stage.file("docker.sock").display());
        self.env.retain(|(key, _)| *key != "DOCKER_HOST");
        self.env.push(("DOCKER_HOST", socket.clone().into()));
        let mut command = self.command("dockerd");
        command.arg("--data-root").arg(self.stage.file("data"));
        command.arg("--exec-root").arg(self.stage.file("exec"));
        command.args(["-H", &socket, "--iptables=false", "--ip6tables=false", "--pidfile"]);
        command.arg(self.stage.file("docker.pid")).args(options).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(self.stage.file("docker.log")).expect("a log"));
        self.daemon = Some(command.spawn().expect("started"));
        for _ in 0..100 {
            if self.run(&["version"]).status.success() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let image = self.stage.file("image.tar");
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(self.stage.file("rootfs")).arg("-cf").arg(&image).arg(".");
        assert!(tar.status().expect("it runs").success());
        self.run(&["import", &image.display().to_string(), "busybox"])
    }

    /// Attaches the container `shop`, and checks that its packets go through the engine.
    fn attaches(&self, bridge: &str, gateway: &str) {
        let stage = &self.stage;
        let host = stage.netns("host");
        ip(&["-n", &host, "link", "add", "up0", "type", "veth", "peer", "name", "up1"]);
        ip(&["-n", &host, "link", "set", "up1", "master", bridge, "up"]);
        ip(&["-n", &host, "link", "set", "up0", "arp", "off", "up"]);
        let policy = format!(
            "uplink: {{port: {{af_packet: up0}}, rate: 1Gbps}}\napi: {{socket: {}}}\ntenants:\n  shop: {{port: {{af_packet: later}}}}\n",
            stage.file("api.sock").display()
        );
        fs::write(stage.file("policy.yaml"), policy).expect("written");
        let _daemon = Daemon::start(Some(&host), &stage.file("policy.yaml"), &[], &stage.file("log"));
        stage.until_it_answers();
        let shown = || said(&self.run(&["exec", "shop", "ip", "address", "show", "eth0"]));
        let before = shown();
        let mut attach = self.command(env!("CARGO_BIN_EXE_plimsoll"));
        attach.args(["attach", "--container", "shop", "--tenant", "shop", "--write", "--policy"]);
        attach.arg(stage.file("policy.yaml")).arg("--socket").arg(stage.file("api.sock"));
        let done = attach.output().expect("it runs");
        assert!(done.status.success(), "{}", said(&done));
        assert!(said(&done).contains(&format!("in bridge `{bridge}`")), "{}", said(&done));
        stage.eventually("the gateway answers", || {
            self.run(&["exec", "shop", "ping", "-c", "1", "-W", "1", gateway]).status.success()
        });
        assert_eq!(shown(), before, "the container's interface is as it was");
        let stats = stage.client().text("GET", "/v1/stats").expect("it answers");
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
        let packets = stats["tenants"]["shop"]["rx_packets"].as_u64().expect("a number");
        assert!(packets > 0, "the container's packets went through the engine");
    }
}

/// Mounts the control groups where `scripts/apart` has hidden them, in the mount namespace that it has made.
fn show_control_groups() {
    static ONCE: Once = Once::new();
    const MOUNT: &str = "at=/sys/fs/cgroup
        [ -z \"$(ls $at)\" ] || exit 0
        controllers=$(cut -d: -f2 /proc/self/cgroup | grep .) || exec mount -t cgroup2 none $at
        mount -t tmpfs none $at
        for each in $controllers; do
            case $each in name=*) options=none,$each ;; *) options=$each ;; esac
            mkdir $at/${each#name=} && mount -t cgroup -o $options none $at/${each#name=}
        done";
    ONCE.call_once(|| {
        // An engine that misses them says so.
        let _ = Command::new("sh").args(["-c", MOUNT]).status();
    });
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.run(&["rm", "-f", "shop", "batch"]);
        if let Some(daemon) = &mut self.daemon {
            let id = nix::unistd::Pid::from_raw(i32::try_from(daemon.id()).expect("a process id"));
            let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM);
            let _ = daemon.wait();
            // Docker that was killed leaves these mounts, and the stage's folder could not be removed.
            let [netns, data] =
                ["exec/netns", "data"].map(|name| self.stage.file(name).display().to_string());
            let script = format!("umount {netns}/* {data} {data}/*/*/* 2>/dev/null");
            let _ = Command::new("sh").args(["-c", &script]).status();
        }
    }
}

#[test]
fn a_container_of_docker_becomes_a_tenant() {
    let Some(mut engine) = Engine::new("docker", &["dockerd", "tar"], "dkr") else { return };
    let imported = engine.start_docker(&[]);
    let started = engine.run(&["run", "-d", "--name", "shop", "busybox", "/bin/sleep", "600"]);
    if !started.status.success() {
        eprintln!("skipped: Docker runs no container here: {}{}", said(&imported), said(&started));
        return;
    }
    engine.attaches("docker0", "172.17.0.1");
}

#[test]
fn a_container_of_podman_becomes_a_tenant() {
    let Some(mut engine) = Engine::new("podman", &[], "pdm") else { return };
    engine.use_podman_apart("");
    let root = engine.stage.file("rootfs").display().to_string();
    let started = engine.run(&[
        "run",
        "-d",
        "--name",
        "shop",
        "--network",
        "podman",
        "--rootfs",
        &root,
        "/bin/sleep",
        "600",
    ]);
    if !started.status.success() {
        eprintln!("skipped: Podman runs no container here: {}", said(&started));
        return;
    }
    let gateway =
        said(&engine.run(&["inspect", "--format", "{{.NetworkSettings.Networks.podman.Gateway}}", "shop"]));
    let bridge = ["cni-podman0", "podman0"].into_iter().find(|bridge| {
        let shown =
            Command::new("ip").args(["-n", &engine.stage.netns("host"), "link", "show", bridge]).output();
        shown.is_ok_and(|shown| shown.status.success())
    });
    engine.attaches(bridge.expect("a bridge"), gateway.trim());
}
