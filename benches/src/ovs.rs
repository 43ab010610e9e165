//! Open vSwitch with DPDK, as a switch between two guests beside ours.
//!
//! Why: operators of virtual machines would pick it instead, and Debian has it.
//! From: its own set-up for vhost-user ports without huge pages, with a policer on each port.
//! Not here: the guests (`vhost`).
//! Invariant: it has a database of its own in a temporary directory, and ends when dropped. A service of the machine is not touched.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Where Debian's `openvswitch-switch-dpdk` puts its switch, and the schema of its database.
const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Above what two guests exchange here, so that the policers look at each packet and drop none: 100 Gb/s, in bytes.
const RATE: &str = "12500000000";
const BURST: &str = "10000000";

/// How long either server may take to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// A switch with the vhost-user ports `a` and `b`; what comes from one leaves through the other.
pub struct Ovs {
    switch: Option<Child>,
    database: Child,
    dir: tempfile::TempDir,
}

impl Ovs {
    /// Whether it is installed.
    pub fn is_installed() -> bool {
        Path::new(SWITCH).exists() && Path::new(SCHEMA).exists()
    }

    /// Starts it, its packets' thread on `core`.
    pub fn start(core: u32) -> Result<Self> {
        ensure!(Self::is_installed(), "no {SWITCH}; install openvswitch-switch-dpdk");
        let dir = tempfile::tempdir()?;
        let conf = dir.path().join("conf.db");
        run(ovs(dir.path(), "ovsdb-tool").arg("create").arg(conf).arg(SCHEMA))?;
        let database = spawn(ovs(dir.path(), "ovsdb-server").arg("conf.db").args([
            "--remote=punix:db.sock",
            "--unixctl=db.ctl",
            "--no-chdir",
        ]))?;
        let mut all = Self { switch: None, database, dir };
        all.await_file("db.sock")?;
        all.set_up(core)?;
        Ok(all)
    }

    /// The socket of a port.
    pub fn socket(&self, port: &str) -> PathBuf {
        self.dir.path().join(port)
    }

    fn set_up(&mut self, core: u32) -> Result<()> {
        let extra = format!(
            "other_config:dpdk-extra=--no-huge --legacy-mem --no-pci -m 3072 --file-prefix=plimsoll{}-ovs",
            std::process::id()
        );
        let mask = format!("other_config:pmd-cpu-mask={:#x}", 1_u32 << core);
        self.configure(&["--no-wait", "init"])?;
        let set = ["--no-wait", "set", "Open_vSwitch", ".", "other_config:dpdk-init=true", &extra, &mask];
        self.configure(&set)?;
        let mut switch = ovs(self.dir.path(), SWITCH);
        self.switch = Some(spawn(switch.args(["unix:db.sock", "--unixctl=switch.ctl", "--no-chdir"]))?);
        // Waits until the switch has done it.
        self.configure(&["add-br", "between", "--", "set", "bridge", "between", "datapath_type=netdev"])?;
        let target = self.dir.path().join("switch.ctl").display().to_string();
        for (port, number) in [("a", "1"), ("b", "2")] {
            let number = format!("ofport_request={number}");
            let add = ["add-port", "between", port, "--", "set", "Interface", port, "type=dpdkvhostuser"];
            self.configure(&[&add[..], &[&number]].concat())?;
            let (rate, burst) = (format!("other-config:cir={RATE}"), format!("other-config:cbs={BURST}"));
            let set = ["set", "port", port, "qos=@policer", "--", "--id=@policer", "create", "qos"];
            self.configure(&[&set[..], &["type=egress-policer", &rate, &burst]].concat())?;
            let held = self.ask(&["ovs-appctl", "-t", &target, "qos/show", port])?;
            ensure!(held.contains(RATE), "the policer of port {port} is not in force: {held}");
        }
        self.ask(&["ovs-ofctl", "del-flows", "unix:between.mgmt"])?;
        for flow in ["in_port=1,actions=output:2", "in_port=2,actions=output:1"] {
            self.ask(&["ovs-ofctl", "add-flow", "unix:between.mgmt", flow])?;
        }
        ["a", "b"].into_iter().try_for_each(|port| self.await_file(port))
    }

    fn configure(&self, arguments: &[&str]) -> Result<()> {
        let patience = format!("--timeout={}", PATIENCE.as_secs());
        self.ask(&[&["ovs-vsctl", "--db=unix:db.sock", &patience], arguments].concat()).map(drop)
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        let (command, arguments) = words.split_first().context("a command")?;
        run(ovs(self.dir.path(), command).args(arguments)).with_context(|| self.words())
    }

    fn await_file(&self, name: &str) -> Result<()> {
        let begun = Instant::now();
        while !self.dir.path().join(name).exists() {
            ensure!(begun.elapsed() < PATIENCE, "Open vSwitch made no {name}: {}", self.words());
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The last lines that the servers wrote.
    fn words(&self) -> String {
        let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for child in self.switch.iter_mut().chain([&mut self.database]) {
            // SAFETY: the child is ours and not yet waited for, so its id is still its own.
            unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) };
            let begun = Instant::now();
            while begun.elapsed() < PATIENCE && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One of its programs, whose files all lie in `dir`.
fn ovs(dir: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(dir);
    command.envs(["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"].map(|name| (name, dir)));
    command
}

fn spawn(command: &mut Command) -> Result<Child> {
    let dir = command.get_current_dir().context("its directory")?;
    let log = std::fs::File::options().create(true).append(true).open(dir.join("log"))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))
}

fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    if !out.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
