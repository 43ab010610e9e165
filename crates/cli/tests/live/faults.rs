//! Faults on real hosts: each beside traffic that has nothing to do with it and must hardly notice.
//!
//! Three daemons in namespaces, as in `hosts.rs`. Exact figures are tested in virtual time (`examples/faults`); here the
//! machine may have two cores for all of it, so that margins are wide, and each test prints what it saw:
//! `cargo test -p plimsoll-cli --test live -- faults --nocapture --test-threads 1`.
//!
//! Needs root (network namespaces) and says so when it has to skip. Everything made here is removed, whatever happens.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::alone;
use crate::support::fleet::{FEEDBACK, Fleet, PLAIN, Plan, inner};
use crate::support::traffic::{Seen, Traffic};
use crate::support::{self, Daemon, PATIENCE, Stage, TRIES, ip, skip};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use nix::unistd::Pid;
use plimsoll_daemon::{Client, Stats};
use plimsoll_slo::{Cause, SloReport, Verdict};

/// Asserts that tenants which have nothing to do with a fault hardly notice it, in one of several looks: a machine that
/// stalls may spoil one look, a fault that others notice spoils all. `look` returns what each tenant sees.
fn kept<const N: usize>(
    names: [&str; N],
    alone: [Seen; N],
    mut look: impl FnMut() -> [Seen; N],
) -> [Seen; N] {
    for _ in 0..TRIES {
        let beside = look();
        let hardly = (0..N).filter(|&who| hardly_noticed(names[who], alone[who], beside[who], LATE));
        if hardly.count() == N {
            return beside;
        }
    }
    panic!("in {TRIES} looks of {names:?}, who had {alone:?}");
}

/// Whether a tenant keeps its datagrams and delay, within these margins.
fn hardly_noticed(what: &str, alone: Seen, beside: Seen, late: Duration) -> bool {
    let part = beside.arrived as f64 / alone.arrived.max(1) as f64;
    let times = beside.p99.as_secs_f64() / alone.p99.as_secs_f64().max(1e-9);
    eprintln!(
        "{what}: {:.1} % of its datagrams, p99 {:?} of {:?} ({times:.2} times)",
        100.0 * part,
        beside.p99,
        alone.p99
    );
    part > 0.8 && beside.p99 < alone.p99 * 3 + late
}

/// The figures of each of these in `span`.
fn watch<const N: usize>(traffics: [&Traffic; N], span: Duration) -> [Seen; N] {
    let marks = traffics.map(Traffic::mark);
    thread::sleep(span);
    core::array::from_fn(|index| traffics[index].since(marks[index]))
}

/// Ends all traffic, and asserts that each lost datagram was counted with a reason; returns those reasons.
fn accounted(
    fleet: &Fleet,
    before: &BTreeMap<String, u64>,
    traffics: &mut [&mut Traffic],
) -> BTreeMap<String, u64> {
    accounted_with(0, fleet, before, traffics)
}

/// Like [`accounted`], where `lies` further datagrams were sent, none of which may arrive.
fn accounted_with(
    lies: u64,
    fleet: &Fleet,
    before: &BTreeMap<String, u64>,
    traffics: &mut [&mut Traffic],
) -> BTreeMap<String, u64> {
    let (mut sent, mut came) = (lies, 0);
    for traffic in traffics {
        let (out, inward) = traffic.drain();
        (sent, came) = (sent + out, came + inward);
    }
    fleet.eventually("nothing is kept of it", || (0..3).all(|host| fleet.keeps_nothing(host)));
    let grown = grown(before, fleet.losses());
    let counted: u64 = grown.values().sum();
    eprintln!("{sent} sent, {came} came, {} lost; counted {counted}: {grown:?}", sent - came);
    // A request for an address is lost with them now and then; it is no tenant's datagram.
    let odd = counted.abs_diff(sent - came);
    assert!(odd <= 5, "{sent} sent, {came} came, and counted are {counted}: {grown:?}");
    grown
}

/// The growth of each count; a count that begins anew with its daemon has grown from 0.
fn grown(before: &BTreeMap<String, u64>, after: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let grown = after.into_iter().map(|(why, count)| {
        let was = before.get(&why).copied().filter(|&was| was <= count).unwrap_or(0);
        (why, count - was)
    });
    grown.filter(|&(_, count)| count > 0).collect()
}

const SETTLE: Duration = Duration::from_millis(700);
const LOOK: Duration = Duration::from_secs(2);
/// The 99th percentile may grow to three times its value and this much.
const LATE: Duration = Duration::from_millis(30);

#[test]
fn a_tenant_at_a_hundred_times_its_envelope_takes_nothing_from_others() {
    let _alone = alone();
    let plan = Plan { sender: ", max: 1Mbps", rest: FEEDBACK, ..PLAIN };
    let Some(mut fleet) = Fleet::new("hx", &plan) else { return };
    fleet.start();
    let before = fleet.losses();
    let mut near = fleet.flood((0, 2), (2, 2), 7_010, 500);
    let mut far = fleet.flood((1, 1), (1, 2), 7_011, 500);
    let mut there = fleet.flood((1, 1), (2, 1), 7_012, 500);
    thread::sleep(SETTLE);
    let quiet = [near.mark(), far.mark(), there.mark()];
    thread::sleep(LOOK);
    let alone = [near.since(quiet[0]), far.since(quiet[1]), there.since(quiet[2])];
    let mut flood = fleet.flood((0, 1), (2, 1), 7_013, 12_000);
    thread::sleep(SETTLE);
    let names = ["who shares its host", "who shares nothing with it", "who sends to the same tenant"];
    kept(names, alone, || watch([&near, &far, &there], LOOK));
    // 1 Mb/s are 118 such frames a second.
    let came = flood.rate(LOOK);
    eprintln!("100 Mb/s of 1: {came:.0} datagrams a second");
    assert!((75.0..200.0).contains(&came), "{came}");
    accounted(&fleet, &before, &mut [&mut near, &mut far, &mut there, &mut flood]);
}

/// PN-S2: made-up senders raise no count, so that no honest sender's limit falls.
#[test]
fn made_up_senders_are_none_and_an_honest_ones_limit_stays() {
    let _alone = alone();
    let Some(mut fleet) = Fleet::new("sp", &Plan { rest: FEEDBACK, ..PLAIN }) else { return };
    fleet.start();
    let before = fleet.losses();
    let mut honest = fleet.flood((1, 1), (2, 1), 7_020, 1_500);
    let mut bystander = fleet.flood((1, 2), (2, 2), 7_021, 500);
    thread::sleep(SETTLE);
    let alone = watch([&honest, &bystander], LOOK);
    let uplink = fleet.stats(2).uplink.drops.clone();
    // A tenant's datagrams with 10,000 addresses, and packets on the underlay from 10,000 hosts with as many senders.
    let netns = fleet.netns("b");
    let mac = fleet.stats(1).fleet.expect("a fleet").hosts["c"].next_hop.clone();
    assert!(mac.is_some(), "{netns} has sent to it");
    let stop = Arc::new(AtomicBool::new(false));
    let sent = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let threads = [("a1", 0), ("b", 1)].map(|(place, kind)| {
        let (stop, sent) = (Arc::clone(&stop), Arc::clone(&sent));
        fleet.inside(place, move || lie(kind, &stop, &sent[kind]))
    });
    let liars = Liars { stop, threads: threads.into() };
    thread::sleep(SETTLE);
    let names = ["the honest sender", "who shares its receiver's host"];
    kept(names, alone, || watch([&honest, &bystander], LOOK));
    let stats = fleet.stats(2);
    let receivers = stats.fleet.as_ref().expect("a fleet").receivers.clone();
    fleet.eventually("it is told a limit all the while", || fleet.limited(1, (2, 1)));
    drop(liars);
    let receiver = &receivers["t1"];
    let pair = fleet.pair(1, (2, 1)).expect("it sends");
    let refused = stats.uplink.drops.get("overlay_unknown_host").copied().unwrap_or(0)
        - uplink.get("overlay_unknown_host").copied().unwrap_or(0);
    eprintln!(
        "{} datagrams of a tenant that lies, {} packets of made-up hosts ({refused} refused); {receiver:?}; {pair:?}",
        sent[0].load(Ordering::Relaxed),
        sent[1].load(Ordering::Relaxed)
    );
    assert!(receiver.senders <= 2, "{receiver:?}");
    assert!(refused > 1_000, "{:?}", stats.uplink.drops);
    let lies = sent.iter().map(|count| count.load(Ordering::Relaxed)).sum();
    accounted_with(lies, &fleet, &before, &mut [&mut honest, &mut bystander]);
}

/// Senders with made-up sources, until this is dropped, which is before their namespaces are removed.
struct Liars {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Liars {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for liar in self.threads.drain(..) {
            let ended = liar.join();
            assert!(ended.is_ok() || thread::panicking(), "a liar has panicked");
        }
    }
}

/// Sends datagrams with made-up sources until told to stop: from a tenant to its neighbour elsewhere, or in the overlay as a
/// host's packets.
fn lie(kind: usize, stop: &AtomicBool, sent: &AtomicU64) {
    let raw =
        socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), SockProtocol::Raw).expect("root may");
    let (to, port) = if kind == 0 { (inner(2, 1), 7_022) } else { (Ipv4Addr::new(192, 0, 2, 3), 6_081) };
    let to_address = SockaddrIn::from(SocketAddrV4::new(to, 0));
    let started = Instant::now();
    let mut number = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        let due = started.elapsed().as_micros() as u64 * LIES_A_SECOND / 1_000_000;
        while u64::from(number) < due && !stop.load(Ordering::Relaxed) {
            let from = Ipv4Addr::new(198, 18, (number / 250 % 40) as u8, (number % 250) as u8 + 1);
            let payload = if kind == 0 { vec![0; 400] } else { overlay(number) };
            let packet = datagram(from, to, port, &payload);
            if sendto(raw.as_raw_fd(), &packet, &to_address, MsgFlags::empty()).is_ok() {
                sent.fetch_add(1, Ordering::Relaxed);
            }
            number += 1;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

const LIES_A_SECOND: u64 = 4_000;

/// An IPv4 packet with a UDP datagram; the kernel fills in its header's checksum.
fn datagram(from: Ipv4Addr, to: Ipv4Addr, port: u16, payload: &[u8]) -> Vec<u8> {
    let udp = 8 + payload.len() as u16;
    let mut packet = vec![0x45, 0];
    packet.extend((20 + udp).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(7_000_u16.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend(udp.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

/// A frame in Geneve for the first tenant of the third host, from an address that no host has.
fn overlay(number: u32) -> Vec<u8> {
    let mut packet = vec![0, 0, 0x65, 0x58, 0, 0, 77, 0];
    packet.extend([2, 0, 0, 0, 2, 1, 2, 0xff]);
    packet.extend(number.to_be_bytes());
    packet.extend([8, 0]);
    let from = Ipv4Addr::from(0x0a09_0000 | (number % 10_000));
    packet.extend(datagram(from, inner(2, 1), 7_022, &[0; 300]));
    packet
}

#[test]
fn a_receiver_that_stops_reading_loses_its_own() {
    let _alone = alone();
    let Some(mut fleet) = Fleet::new("st", &Plan { rest: FEEDBACK, ..PLAIN }) else { return };
    fleet.start();
    let before = fleet.losses();
    let mut bystander = fleet.flood((1, 1), (2, 2), 7_031, 500);
    let mut stuck = fleet.flood((0, 1), (2, 1), 7_030, 3_000);
    thread::sleep(SETTLE);
    let sent_before = stuck.mark();
    let alone = watch([&bystander], LOOK);
    assert!(stuck.since(sent_before).arrived > 1_000);
    stuck.be_deaf(true);
    thread::sleep(Duration::from_secs(3));
    kept(["who shares its host"], alone, || watch([&bystander], LOOK));
    stuck.be_deaf(false);
    let lost = accounted(&fleet, &before, &mut [&mut bystander, &mut stuck]);
    // Its own kernel takes datagrams until its socket is full. A busy machine may lose a few elsewhere.
    let own = lost.get("c1 kernel, socket").copied().unwrap_or(0);
    let others = lost.values().sum::<u64>() - own;
    assert!(own > 1_000 && others < own / 20, "{lost:?}");
    // A TCP receiver that stops reading stops its sender, and no other.
    let took = fleet.transfer((1, 2), (2, 2), 1_000_000);
    eprintln!("a megabyte beside it took {took:?}");
}

const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 9);
const SHOP: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const GUEST_MAC: &str = "02:00:00:00:00:77";

/// A virtual machine that is stopped returns no descriptors: packets for it are lost, counted, and attributed to it.
#[test]
fn a_guest_that_stops_reading_is_named_and_its_neighbour_notices_nothing() {
    let _alone = alone();
    let Some(stage) = Stage::new("gs") else { return };
    if Command::new("dpdk-testpmd")
        .arg("--help")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_err()
    {
        return skip("dpdk-testpmd is missing; scripts/setup.sh test installs it");
    }
    ["far", "shop"].iter().for_each(|name| stage.add_netns(name));
    let policy = format!(
        "uplink: {{port: {{tap: {{netns: {}, name: up0}}}}, rate: 200Mbps}}\n\
         api: {{socket: {}}}\n\
         tenants:\n\
         \x20 shop: {{port: {{tap: {{netns: {}, name: eth0}}}}, min: 20Mbps}}\n\
         \x20 vm: {{port: {{vhost_user: {{socket: {}, mac: \"{GUEST_MAC}\"}}}}, min: 20Mbps}}\n",
        stage.netns("far"),
        stage.file("api.sock").display(),
        stage.netns("shop"),
        stage.file("vm.sock").display(),
    );
    std::fs::write(stage.file("plimsoll.yaml"), policy).expect("written");
    let _daemon = Daemon::start(None, &stage.file("plimsoll.yaml"), &[], &stage.file("log"));
    let client = Client::new(&stage.file("api.sock"));
    let eventually = |what: &str, holds: &mut dyn FnMut() -> bool| {
        support::eventually(what, PATIENCE, || stage.read("log") + &stage.read("guest"), holds);
    };
    eventually("the daemon answers", &mut || client.text("GET", "/v1/health").is_ok());
    for (name, device, address) in [("far", "up0", FAR), ("shop", "eth0", SHOP)] {
        ip(&["-n", &stage.netns(name), "address", "add", &format!("{address}/24"), "dev", device]);
    }
    let mut guest = Guest::start(&stage);
    eventually("the guest answers", &mut || stage.ping("far", GUEST, 56));
    // Requests for its address have no answer while it is stopped.
    let netns = stage.netns("far");
    ip(&["-n", &netns, "neighbour", "replace", &GUEST.to_string(), "lladdr", GUEST_MAC, "dev", "up0"]);
    let bystander = stage.traffic(("far", FAR), ("shop", SHOP), 7_060, 500);
    thread::sleep(SETTLE);
    let alone = watch([&bystander], LOOK);
    let stats = || client.get::<Stats>("/v1/stats").expect("counters");
    let before = stats();
    guest.signal(Signal::SIGSTOP);
    let mut sent = 0;
    kept(["who shares its host"], alone, || {
        let flood = stage.inside("far", || {
            let socket = UdpSocket::bind((FAR, 0)).expect("bound");
            for _ in 0..3_000 {
                socket.send_to(&[0; 500], (GUEST, 9)).expect("sent");
                thread::sleep(Duration::from_micros(300));
            }
        });
        let beside = watch([&bystander], LOOK);
        flood.join().expect("no panic");
        sent += 3_000;
        beside
    });
    thread::sleep(Duration::from_millis(1_200));
    let after = stats();
    let taken = after.tenants["vm"].tx_packets - before.tenants["vm"].tx_packets;
    // On a busy machine it may be served apart meanwhile: then its thread finds the ring full.
    let full = |stats: &Stats| {
        let senders = stats.uplink.drops.get("receiver_full").copied().unwrap_or(0);
        senders + stats.tenants["vm"].undelivered.get("no_buffer").copied().unwrap_or(0)
    };
    let lost = full(&after) - full(&before);
    eprintln!("of {sent} datagrams for it, {taken} were taken by its ring, and {lost} found it full");
    assert!(
        lost + 1_000 > sent && (taken + lost).abs_diff(sent) <= 5,
        "{taken} and {lost}: {:?}",
        after.uplink.drops
    );
    let slo: SloReport = client.get("/v1/slo?window=5s").expect("judged");
    let [vm, shop] = ["vm", "shop"].map(|name| &slo.tenants[name].whole);
    assert_eq!((vm.verdict, vm.breaches[0].cause), (Verdict::Beyond, Cause::NotReading), "{vm:?}");
    assert_eq!(shop.verdict, Verdict::Held, "{shop:?}");
    guest.signal(Signal::SIGCONT);
    eventually("the guest answers again", &mut || stage.ping("far", GUEST, 56));
    bystander.end();
}

/// DPDK's virtio-user as a virtual machine that answers pings, and takes all other packets.
struct Guest(Child);

impl Guest {
    fn start(stage: &Stage) -> Self {
        let log = std::fs::File::create(stage.file("guest")).expect("a log");
        let device =
            format!("path={},mac={GUEST_MAC},queues=1,queue_size=256", stage.file("vm.sock").display());
        let mut command = Command::new("dpdk-testpmd");
        command
            .args(["--no-huge", "-m", "64", "--no-pci", "--lcores=0@0,1@0", "--file-prefix", &stage.tag])
            .arg(format!("--vdev=net_virtio_user0,{device}"))
            .args(["--", "-i", "--total-num-mbufs=2048", "--auto-start", "--forward-mode=icmpecho"])
            // It ends when its standard input does, and so with this process.
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log);
        Self(command.spawn().expect("started"))
    }

    fn signal(&mut self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.0.id()).expect("a process id")), signal).expect("it runs");
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// No decision of the daemon depends on the wall clock, and messages that a restart numbers from a stepped clock are refused.
#[test]
fn steps_of_the_wall_clock_change_nothing() {
    let _alone = alone();
    let Some(mut fleet) = Fleet::new("ck", &Plan { rest: FEEDBACK, stepped: true, ..PLAIN }) else { return };
    fleet.start();
    let before = fleet.losses();
    let mut flood = fleet.flood((0, 1), (2, 1), 7_040, 9_000);
    let mut bystander = fleet.flood((1, 1), (2, 2), 7_041, 500);
    thread::sleep(SETTLE * 2);
    let (mut last, mut step) = (watch([&flood, &bystander], LOOK), 0);
    for (what, seconds) in
        [("an hour ahead", 3_600), ("nearly three hours back", -10_000), ("and a year ahead", 31_536_000)]
    {
        let names = ["who is held back", "a bystander"].map(|who| format!("{what}: {who}"));
        last = kept([&names[0], &names[1]], last, || {
            // Another look is one after another step of the same length.
            step += seconds;
            (0..3).for_each(|host| fleet.step(host, step));
            let told = [0, 1, 2].map(|host| fleet.steps_told(host));
            let seen = watch([&flood, &bystander], LOOK);
            let told = [0, 1, 2].map(|host| fleet.steps_told(host) - told[host]);
            eprintln!("{what}: the daemons asked for the time {told:?} times meanwhile");
            assert!(told.iter().all(|&times| times > 0), "{what}: each daemon has seen the step: {told:?}");
            seen
        });
        fleet.eventually("feedback is still heard", || fleet.limited(0, (2, 1)));
    }
    accounted(&fleet, &before, &mut [&mut flood, &mut bystander]);
}

#[test]
fn after_a_kill_the_gap_is_measured_and_its_losses_are_bounded() {
    let _alone = alone();
    let Some(mut fleet) = Fleet::new("gp", &Plan { rest: FEEDBACK, veth: true, ..PLAIN }) else { return };
    fleet.start();
    let before = fleet.losses();
    let mut taps = fleet.flood((0, 1), (2, 1), 7_050, 1_000);
    let mut veths = fleet.flood((0, 2), (2, 2), 7_051, 1_000);
    let mut bystander = fleet.flood((1, 1), (0, 2), 7_052, 500);
    thread::sleep(SETTLE);
    let [_, _, alone] = watch([&taps, &veths, &bystander], LOOK);
    let marks = [taps.mark(), veths.mark(), bystander.mark()];
    let asked = Instant::now();
    let on_the_wire = fleet.arrivals("c", "up0");
    fleet.kill(2);
    let (killed, unsure) = (Instant::now(), asked.elapsed());
    fleet.launch(2);
    // A TAP goes with its daemon; the test gives the tenant its address again.
    let netns = fleet.netns("c1");
    let address = format!("{}/24", inner(2, 1));
    fleet.eventually("the device is back", || {
        let add = ["-n", &netns, "address", "add", &address, "dev", "eth0"];
        Command::new("ip").args(add).output().is_ok_and(|done| done.status.success())
    });
    let back = killed.elapsed();
    let first = taps.mark();
    fleet.eventually("traffic goes on", || {
        taps.since(first).arrived > 100 && veths.since(marks[1]).arrived > 100
    });
    thread::sleep(LOOK.saturating_sub(killed.elapsed()));
    fleet.eventually("its limits are heard again", || fleet.limited(0, (2, 1)));
    let [by_tap, by_veth, beside] = [taps.since(marks[0]), veths.since(marks[1]), bystander.since(marks[2])];
    let span = killed.elapsed();
    eprintln!(
        "killed and started again: {:?} without traffic through a packet socket, {:?} through a TAP (its device was back \
         after {back:?})",
        by_veth.gap, by_tap.gap
    );
    assert!(
        by_veth.gap < Duration::from_secs(5) && by_tap.gap < Duration::from_secs(8),
        "{by_veth:?} {by_tap:?}"
    );
    let expected = alone.arrived as f64 * span.as_secs_f64() / LOOK.as_secs_f64();
    let expected = Seen { arrived: expected as u64, ..alone };
    // It is killed once, so that there is no second look: a stall of the machine itself has to fit in.
    let late = Duration::from_millis(200);
    assert!(
        hardly_noticed("who has nothing to do with it", expected, beside, late),
        "{beside:?} {expected:?}"
    );
    let (mut sent, mut came) = (0, 0);
    for traffic in [&mut taps, &mut veths, &mut bystander] {
        let (out, inward) = traffic.drain();
        (sent, came) = (sent + out, came + inward);
    }
    // Frames that the wire brought and the new daemon has not seen came while no daemon ran.
    let uplink = fleet.stats(2).uplink;
    let seen = uplink.rx_packets + uplink.drops.get("kernel_full").copied().unwrap_or(0);
    let unread = (fleet.arrivals("c", "up0") - on_the_wire).saturating_sub(seen);
    let grown = grown(&before, fleet.losses());
    let counted = unread + grown.values().sum::<u64>();
    let lost = sent - came;
    eprintln!(
        "{sent} sent, {came} came, {lost} lost; {unread} frames came while no daemon read, and {grown:?}"
    );
    // No counter covers the frames that it held when it was killed (two come in a millisecond), nor those between the look at
    // its device and the kill; requests for addresses come meanwhile, too.
    let odd = 40 + 2 * unsure.as_millis() as u64;
    assert!(lost.abs_diff(counted) <= odd, "{lost} lost, {counted} counted, {unsure:?}");
}
