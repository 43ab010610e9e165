//! Namespaces against the real kernel: entered without a trace, and swept after a crash.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use crate::support::{live, quiet, skip};
use nix::sys::stat::stat;
use plimsoll_ports::PortError;
use plimsoll_ports::netns::{Netns, NetnsRef, sweep};

/// Which namespace the calling thread is in.
fn here() -> u64 {
    stat("/proc/thread-self/ns/net").unwrap().st_ino
}

#[test]
fn entering_a_namespace_leaves_the_caller_where_it_was() {
    if !live() {
        return;
    }
    let before = here();
    let netns = quiet("visited");
    let inside = netns.run(here).unwrap();
    assert_ne!(inside, before);
    assert_eq!(here(), before);
    assert_eq!(Netns::own().unwrap().run(here).unwrap(), before);
    let panicked = std::panic::catch_unwind(|| netns.run(|| panic!("inside")));
    assert!(panicked.is_err());
    assert_eq!(here(), before);
}

#[test]
fn a_command_runs_inside() {
    if !live() {
        return;
    }
    let netns = quiet("visited");
    let inside = netns.run(here).unwrap();
    let output = netns.command("readlink").arg("/proc/self/ns/net").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), format!("net:[{inside}]"));
    let again = Netns::open(&NetnsRef::Path(netns.path())).unwrap();
    assert_eq!(again.run(here).unwrap(), inside, "its path leads back to it");
    let by_path = format!("--net={}", netns.path().display());
    if let Ok(output) = Command::new("nsenter").args([&by_path, "readlink", "/proc/self/ns/net"]).output() {
        let other_process = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert_eq!(other_process, format!("net:[{inside}]"), "from another process too");
    }
}

#[test]
fn a_topology_of_three_routes() {
    if !live() {
        return;
    }
    let (left, router, right) = (quiet("left"), quiet("router"), quiet("right"));
    let join = |host: &Netns, interface: &str, address: &str, gateway: &str| {
        host.links().add_veth("eth0", &router, interface).unwrap();
        host.links().add_address("eth0", address.parse().unwrap()).unwrap();
        host.links().set_up("eth0").unwrap();
        router.links().add_address(interface, format!("{gateway}/24").parse().unwrap()).unwrap();
        router.links().set_up(interface).unwrap();
        host.links().add_route("0.0.0.0/0".parse().unwrap(), Some(gateway.parse().unwrap()), None).unwrap();
    };
    join(&left, "to-left", "10.7.1.2/24", "10.7.1.1");
    join(&right, "to-right", "10.7.2.2/24", "10.7.2.1");
    router.set_sysctl("net.ipv4.ip_forward", "1").unwrap();
    let listener = right.run(|| TcpListener::bind("10.7.2.2:80")).unwrap().unwrap();
    let client = left.run(|| TcpStream::connect("10.7.2.2:80")).unwrap().unwrap();
    let (_, from) = listener.accept().unwrap();
    assert_eq!(from, client.local_addr().unwrap());
}

#[test]
fn what_cannot_be_is_explained() {
    if !live() {
        return;
    }
    let (a, b) = (quiet("a"), quiet("b"));
    a.links().add_veth("eth0", &b, "eth0").unwrap();
    let taken = a.links().add_veth("eth0", &b, "eth1").unwrap_err();
    assert!(matches!(taken, PortError::NameTaken { .. }), "{taken}");
    let missing = a.links().set_up("eth9").unwrap_err();
    assert!(matches!(missing, PortError::NoInterface { .. }), "{missing}");
    assert_eq!(
        missing.to_string(),
        "interface `eth9` does not exist in network namespace `a`; `ip link` there lists those that do"
    );
    let mixed = a
        .links()
        .add_route("10.0.0.0/8".parse().unwrap(), Some("fd00::1".parse().unwrap()), None)
        .unwrap_err();
    assert!(mixed.to_string().contains("different IP versions"), "{mixed}");
}

/// Not a test of its own: the process that the test below kills.
#[test]
fn leaves_things_behind() {
    let Ok(name) = std::env::var(LEAK) else { return };
    let netns = Netns::create(&name).unwrap();
    netns.links().add_veth(&name, &Netns::own().unwrap(), &format!("{name}p")).unwrap();
    std::process::exit(9); // no destructor runs
}

const LEAK: &str = "PLIMSOLL_TEST_LEAK";

#[test]
fn what_a_crash_left_is_swept_and_what_lives_is_not() {
    let (mine, leaked) = (format!("plma{}", std::process::id()), format!("plmb{}", std::process::id()));
    let alive = match Netns::create(&mine) {
        Ok(alive) => alive,
        Err(error) => return skip(format_args!("named namespaces cannot be made here: {error}")),
    };
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "live_netns::leaves_things_behind"])
        .env(LEAK, &leaked)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(9));
    assert!(Netns::open(&NetnsRef::Name(leaked.clone())).is_ok(), "the crash left it");

    let swept = sweep().unwrap();
    // Another test process may sweep at the same time; in either case it is gone.
    assert!(!swept.namespaces.contains(&mine));
    assert!(Netns::open(&NetnsRef::Name(leaked.clone())).is_err());
    assert!(Netns::own().unwrap().links().get(&format!("{leaked}p")).is_err());
    assert!(PathBuf::from("/run/netns").join(&mine).exists());
    drop(alive);
}

#[test]
fn without_privilege_the_way_out_is_named() {
    let run = Command::new("unshare")
        .args(["--user", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "live_netns::is_refused"])
        .env(REFUSED, "1")
        .output();
    let Ok(run) = run else { return skip("no `unshare` here") };
    let text = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    if text.contains("unshare failed") {
        return eprintln!("SKIPPED: user namespaces are not allowed here");
    }
    assert!(run.status.success() && text.contains("1 passed"), "{text}");
}

/// Not a test of its own: runs as the user `nobody`, in a user namespace without rights.
#[test]
fn is_refused() {
    if std::env::var(REFUSED).is_err() {
        return;
    }
    let config = plimsoll_ports::TapConfig::new(NetnsRef::Own, "eth7");
    for error in [Netns::anonymous("x").unwrap_err(), plimsoll_ports::Tap::open(&config).unwrap_err()] {
        assert!(matches!(error, PortError::Permission { .. }), "{error}");
        assert!(error.to_string().contains("run as root or with CAP_NET_ADMIN"), "{error}");
    }
}

const REFUSED: &str = "PLIMSOLL_TEST_REFUSED";

#[test]
fn names_live_beside_those_of_ip_netns() {
    if std::env::var(BESIDE).is_ok() {
        return names_made_before_and_after_ip_netns();
    }
    // In a mount namespace of its own with an empty /run, so that ours comes first.
    let run = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            "mount -t tmpfs tmpfs /run && exec \"$0\" \"$@\"",
        ])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "live_netns::names_live_beside_those_of_ip_netns"])
        .env(BESIDE, "1")
        .output();
    let Ok(run) = run else { return skip("no `unshare` here") };
    let text = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    if text.contains("unshare failed") || text.contains("permission denied") {
        return eprintln!("SKIPPED: mount namespaces are not allowed here");
    }
    assert!(run.status.success() && text.contains("1 passed"), "{text}");
}

const BESIDE: &str = "PLIMSOLL_TEST_BESIDE";

fn names_made_before_and_after_ip_netns() {
    let ip = |args: &[&str]| {
        Command::new("ip").arg("netns").args(args).status().is_ok_and(|status| status.success())
    };
    let before = Netns::create("before").unwrap();
    if !ip(&["add", "theirs"]) {
        return skip("no `ip` here");
    }
    let after = Netns::create("after").unwrap();
    drop((before, after));
    let names: Vec<_> =
        std::fs::read_dir("/run/netns").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["theirs"]);
    assert!(ip(&["delete", "theirs"]));
}
