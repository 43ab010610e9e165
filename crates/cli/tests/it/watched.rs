//! Backpressure that watches a real cgroup, or a real thread: a flow is slowed down while that is busy, and no longer.
//!
//! Needs root. The cgroup is in a mount namespace of the test's own, as not every machine has cgroup v2 below `/sys/fs/cgroup`.

use std::cell::RefCell;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use plimsoll_daemon::HeavyReport;

use crate::support::{Daemon, Stage, ip, skip};

const SHOP: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 9);

/// A daemon that watches `watch`, which may use a quarter of a core, and 2,000 datagrams a second to its tenant.
fn watching(tag: &str, watch: &str, while_busy: impl FnOnce(&Stage), rest: impl FnOnce()) {
    let Some(stage) = Stage::with_netns(tag, &["shop", "far"]) else { return };
    let [shop, far] = ["shop", "far"].map(|name| stage.netns(name));
    let policy = format!(
        "uplink: {{port: {{tap: {{netns: {far}, name: up0}}}}, rate: 1Gbps}}\n\
         api: {{socket: {}}}\n\
         tenants: {{shop: {{port: {{tap: {{netns: {shop}, name: eth0}}}}}}}}\n\
         backpressure: {{heavy: 500pps, watch: {watch}, cores: 0.25, rate: 4Mbps, burst: 64kB, mode: drop, lifetime: 500ms}}\n",
        stage.file("api.sock").display()
    );
    fs::write(stage.file("plimsoll.yaml"), policy).expect("written");
    let _daemon = Daemon::start(None, &stage.file("plimsoll.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    for (name, device, address) in [("shop", "eth0", SHOP), ("far", "up0", FAR)] {
        ip(&["-n", &stage.netns(name), "address", "add", &format!("{address}/24"), "dev", device]);
    }
    let _traffic = stage.traffic(("far", FAR), ("shop", SHOP), 7_000, 2_000);
    while_busy(&stage);
    stage.eventually("the flow is slowed down", || {
        report(&stage).is_some_and(|report| report.flows.iter().any(|flow| flow.pressed.is_some()))
    });
    assert!(report(&stage).and_then(|report| report.watched).is_some_and(|watched| watched.overloads > 0));
    stage.eventually("the log says so", || stage.read("log").contains(" is overloaded"));
    // It goes on in spite of the rate, so that the flow's packets are not its cause.
    thread::sleep(std::time::Duration::from_millis(400));
    rest();
    stage.eventually("the flow is let go", || {
        report(&stage).is_some_and(|report| report.flows.iter().any(|flow| flow.pressed.is_none()))
    });
    let watched = report(&stage).and_then(|report| report.watched).expect("it is watched");
    assert!(!watched.overloaded, "{watched:?}");
}

fn report(stage: &Stage) -> Option<HeavyReport> {
    stage.client().get("/v1/heavy").expect("it answers")
}

/// Waits until a heavy hitter is listed, and fails if it is slowed down already.
fn until_heavy(stage: &Stage) {
    stage.eventually("the flow is heavy", || report(stage).is_some_and(|report| !report.flows.is_empty()));
    let report = report(stage).expect("flows are counted");
    let watched = report.watched.expect("it is watched");
    assert!(!watched.overloaded && report.flows.iter().all(|flow| flow.pressed.is_none()), "{watched:?}");
}

/// Moves this thread, and what it starts from now on, into a mount namespace in which `/sys/fs/cgroup` is a cgroup v2 hierarchy.
/// Answers why it cannot.
fn mount_hierarchy() -> Result<(), String> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).map_err(|error| error.to_string())?;
    for args in [&["--make-rprivate", "/"][..], &["-t", "cgroup2", "none", "/sys/fs/cgroup"]] {
        let done = Command::new("mount").args(args).output().map_err(|error| error.to_string())?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned());
        }
    }
    Ok(())
}

/// A cgroup of this test's own, with a process that is busy, and is ended with it.
struct Busy {
    cgroup: PathBuf,
    child: Option<Child>,
}

impl Busy {
    fn begin(&mut self) {
        let script = format!("echo $$ > {}/cgroup.procs; while :; do :; done", self.cgroup.display());
        self.child = Some(Command::new("sh").args(["-c", &script]).spawn().expect("a shell"));
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it ended");
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.end();
        let _ = fs::remove_dir(&self.cgroup);
    }
}

#[test]
fn a_busy_cgroup_has_its_heavy_flow_slowed_down() {
    if !nix::unistd::geteuid().is_root() {
        return skip("this test makes namespaces and a cgroup, which takes root");
    }
    let test = thread::spawn(|| {
        if let Err(why) = mount_hierarchy() {
            return skip(&format!("no cgroup v2 hierarchy can be mounted: {why}"));
        }
        let name = format!("plimsoll-{}", std::process::id());
        let cgroup = Path::new("/sys/fs/cgroup").join(&name);
        fs::create_dir(&cgroup).expect("a cgroup");
        let busy = RefCell::new(Busy { cgroup, child: None });
        watching(
            "wcg",
            &format!("{{cgroup: /{name}}}"),
            |stage| {
                until_heavy(stage);
                busy.borrow_mut().begin();
            },
            || busy.borrow_mut().end(),
        );
    });
    test.join().expect("it passed");
}

/// As a virtual machine's vCPU is a thread of its process: the thread is watched, not the process.
#[test]
fn a_busy_thread_has_its_heavy_flow_slowed_down() {
    let (tell, told) = mpsc::channel();
    let [busy, over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let thread = thread::spawn({
        let (busy, over) = (Arc::clone(&busy), Arc::clone(&over));
        move || {
            tell.send(nix::unistd::gettid()).expect("awaited");
            while !over.load(Ordering::Relaxed) {
                if busy.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                } else {
                    thread::sleep(std::time::Duration::from_millis(1));
                }
            }
        }
    });
    let id = told.recv().expect("it tells");
    watching(
        "wth",
        &format!("{{pids: [{id}]}}"),
        |stage| {
            until_heavy(stage);
            busy.store(true, Ordering::Relaxed);
        },
        || busy.store(false, Ordering::Relaxed),
    );
    over.store(true, Ordering::Relaxed);
    thread.join().expect("it ends");
}
