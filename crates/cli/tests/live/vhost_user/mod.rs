//! `plimsoll run` with virtual machines: DPDK's virtio-user, or Linux in QEMU, as the guest; the kernel behind a TAP as the
//! wire.
//!
//! Needs root (network namespaces), `dpdk-testpmd` and QEMU, and says so when it has to skip. Everything made here is removed,
//! whatever happens.

mod papers;
mod world;

use nix::sys::signal::Signal;
use plimsoll_daemon::RingsStats;

use crate::support::TRIES;
use world::{Machine, World};

#[test]
fn a_guest_on_virtio_user_is_reached_and_answers() {
    let Some(mut world) = World::new("vhe") else { return };
    world.start("10Gbps", "");
    world.guest("queues=1,queue_size=256", &["--forward-mode=icmpecho"]);
    world.eventually("the guest answers", || world.answers());
    world.loses_nothing();
    let stats = world.stats();
    let vm = &stats.tenants["vm"];
    assert!(vm.rx_packets >= 51 && vm.tx_packets >= 51, "{vm:?}");
    assert!(vm.drops.is_empty(), "{vm:?}");
}

/// Its two servers are on a processor each, and so send from a ring each.
#[test]
fn linux_in_qemu_outlives_the_daemon_and_the_port_outlives_linux_with_two_pairs_of_rings() {
    let Some(mut world) = World::new("vhq") else { return };
    world.start("500Mbps", "");
    if !world.boot(Machine { pairs: 2, ..Machine::default() }) {
        return;
    }
    world.loses_nothing();
    let serve = "taskset 1 iperf3 -s -p 5201 -D; taskset 2 iperf3 -s -p 5202 -D";
    world.ask(serve);
    for port in ["5201", "5202"] {
        for direction in [&[][..], &["-R"], &["-P", "8"]] {
            let mut moves = vec!["-c", "10.9.0.1", "-p", port, "-n", "20M"];
            moves.extend(direction);
            // A server of iperf3 refuses clients while it serves another.
            world.eventually("twenty megabytes", || world.outside("iperf3", &moves).status.success());
        }
    }
    let stats = world.stats();
    let vm = &stats.tenants["vm"];
    assert!(
        vm.rx_bytes > 30_000_000 && vm.rx_bytes / vm.rx_packets > 2_000,
        "segments from the guest: {vm:?}"
    );
    assert!(
        vm.tx_bytes > 50_000_000 && vm.tx_bytes / vm.tx_packets > 2_000,
        "segments for the guest: {vm:?}"
    );
    both_carry(&world, 100);

    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        world.restart_under_load(signal, &["5201", "5202"]);
        world.loses_nothing();
        both_carry(&world, 20);
    }
    assert!(
        !world.read("guest").contains("is not a head"),
        "no descriptor came back twice: {}",
        world.read("guest")
    );

    world.ask("ethtool -L eth0 combined 1");
    let before = world.stats().tenants["vm"].rings.clone();
    world.loses_nothing();
    world.eventually("two megabytes", || {
        world.outside("iperf3", &["-c", "10.9.0.1", "-p", "5202", "-n", "2M", "-R"]).status.success()
    });
    let after = world.stats().tenants["vm"].rings.clone();
    let moved = |pair: &RingsStats| (pair.rx_packets, pair.tx_packets);
    assert_eq!(moved(&after[1]), moved(&before[1]), "the second pair is out of use");
    assert!(after[0].rx_packets > before[0].rx_packets);
    world.ask("ethtool -L eth0 combined 2");
    world.loses_nothing();

    world.type_in("reboot -f");
    world.configure(2);
    world.loses_nothing();
    let before = world.stats().tenants["vm"].rings.clone();
    world.ask(serve);
    for port in ["5201", "5202"] {
        world.eventually("two megabytes", || {
            world
                .outside("iperf3", &["-c", "10.9.0.1", "-p", port, "-n", "2M", "-R", "-P", "8"])
                .status
                .success()
        });
    }
    let after = world.stats().tenants["vm"].rings.clone();
    let carried = |pair: usize| {
        after[pair].rx_packets + after[pair].tx_packets > before[pair].rx_packets + before[pair].tx_packets
    };
    assert!(carried(0) && carried(1), "{after:?}");
}

/// QEMU copies the guest's memory while data comes in, so what the daemon writes meanwhile must be in its log.
///
/// QEMU 7.2 without KVM now and then misses what its own emulated processor writes meanwhile: with a network card of its own in place
/// of the daemon, five of thirteen guests that moved while they received at full speed had a broken kernel then. So the rate is low
/// here, and there are several tries. That every page which the daemon writes is in the log is shown without QEMU
/// (`a_guest_that_moves_while_frames_wait...` of the daemon's tests).
#[test]
fn a_guest_moves_to_another_host_while_it_receives_and_misses_no_byte() {
    let moved = (0..TRIES).any(|_| std::panic::catch_unwind(move_a_guest).is_ok());
    assert!(moved, "in none of {TRIES} tries");
}

fn move_a_guest() {
    const BYTES: usize = 20_000_000;
    let Some(mut world) = World::new("vhm") else { return };
    world.start("40Mbps", "");
    if !world.boot(Machine::default()) {
        return;
    }
    world.add_host("40Mbps");
    world.ask("(nc -l -p 7000 >/tmp/received; echo all >/tmp/done) & sleep 1");
    let (sum, sending) = world.send((0..BYTES).map(|n| (n * n / 7 % 251) as u8).collect());
    world.eventually("it receives", || world.stats().tenants["vm"].tx_bytes > 1_000_000);
    world.move_guest();
    assert!(world.stats_there().tenants["vm"].tx_bytes < BYTES as u64, "it moved before all had come");
    sending.join().expect("sent");
    world.ask("until [ -e /tmp/done ]; do sleep 1; done");
    let received = world.ask("md5sum </tmp/received");
    assert!(received.contains(sum.trim()), "{received} in place of {sum}");
    world.loses_nothing();
    let there = world.stats_there().tenants["vm"].clone();
    assert!(there.tx_bytes > 1_000_000 && there.drops.is_empty(), "{there:?}");
}

/// Asserts that both pairs of rings have carried `least` frames at least; the guest chooses the direction by its flows' hashes.
fn both_carry(world: &World, least: u64) {
    let rings = world.stats().tenants["vm"].rings.clone();
    let carried = rings.iter().filter(|pair| pair.rx_packets + pair.tx_packets >= least);
    assert_eq!(carried.count(), 2, "{rings:?}");
}
