//! Sessions: how they begin, and which frames open in them.

use proptest::prelude::*;

use super::frames::{GENERATION, WINDOW, Window};
use super::*;

#[path = "sealing_key_tests.rs"]
mod keys;

const KEY: [u8; 32] = [7; 32];
const A: HostId = HostId(1);
const B: HostId = HostId(2);
const VNI: u32 = 7;

/// One host, with its session with the other.
struct Host {
    sealing: Sealing,
    session: Session,
}

impl Host {
    fn new(own: HostId, peer: HostId, first: u64, start: u64) -> Self {
        let sealing = Sealing::new(&KEY, own, first, start);
        Self { session: sealing.session(peer), sealing }
    }

    fn hello(&mut self, now: Nanos) -> Option<[u8; HELLO]> {
        self.session.hello(&self.sealing, now)
    }

    fn greet(&mut self, hello: &[u8], now: Nanos) -> Greeted {
        self.session.greet(&mut self.sealing, hello, now)
    }

    fn seal(&mut self, frame: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; SEALED_HEAD + frame.len() + SEALED_TAG];
        packet[SEALED_HEAD..SEALED_HEAD + frame.len()].copy_from_slice(frame);
        assert!(self.session.seal(VNI, &mut packet), "the session is live");
        packet
    }

    fn open(&mut self, packet: &[u8]) -> Result<Vec<u8>, Unopened> {
        self.open_at(packet, Nanos::ZERO)
    }

    fn open_at(&mut self, packet: &[u8], now: Nanos) -> Result<Vec<u8>, Unopened> {
        let mut packet = packet.to_vec();
        self.session.open(VNI, &mut packet, now)?;
        Ok(packet[SEALED_HEAD..packet.len() - SEALED_TAG].to_vec())
    }
}

/// Exchanges hellos until both hosts have a session and none is due, and returns all hellos.
fn shake(a: &mut Host, b: &mut Host, now: &mut Nanos) -> Vec<[u8; HELLO]> {
    let mut said = Vec::new();
    for _ in 0..300 {
        *now += GAP;
        if let Some(hello) = a.hello(*now) {
            b.greet(&hello, *now);
            said.push(hello);
        }
        if let Some(hello) = b.hello(*now) {
            a.greet(&hello, *now);
            said.push(hello);
        }
        if a.session.is_live() && b.session.is_live() && a.session.due.is_none() && b.session.due.is_none() {
            return said;
        }
    }
    panic!("no session after {} hellos: {:?} {:?}", said.len(), a.session, b.session);
}

fn pair() -> (Host, Host, Nanos) {
    let (mut a, mut b, mut now) = (Host::new(A, B, 100, 11), Host::new(B, A, 100, 22), Nanos::ZERO);
    let said = shake(&mut a, &mut b, &mut now);
    assert!(said.len() <= 5, "{} hellos", said.len());
    (a, b, now)
}

#[test]
fn what_is_sealed_opens_once_in_any_order_and_hides_what_it_is() {
    let (mut a, mut b, _) = pair();
    let packets: Vec<Vec<u8>> = (0..4).map(|n| a.seal(&[n; 60])).collect();
    assert!(packets[1][SEALED_HEAD..].windows(4).all(|part| part != [1; 4]));
    for n in [2, 0, 3, 1] {
        assert_eq!(b.open(&packets[n]), Ok(vec![n as u8; 60]));
        assert_eq!(b.open(&packets[n]), Err(Unopened::Replayed));
    }
    let back = b.seal(b"an answer");
    assert_eq!(a.open(&back).as_deref(), Ok(&b"an answer"[..]));
    assert_eq!(b.open(&back), Err(Unopened::WrongSession), "back at its sender");
}

#[test]
fn a_frame_is_for_one_network_between_two_hosts() {
    let (mut a, mut b, mut now) = pair();
    let mut packet = a.seal(&[5; 60]);
    assert_eq!(b.session.open(VNI + 1, &mut packet, now), Err(Unopened::Forged));
    // Another host of the fleet that knows the key and all that was said.
    let mut c = Host::new(HostId(3), B, 100, 33);
    let mut b_of_c = Host { session: b.sealing.session(HostId(3)), sealing: Sealing::new(&KEY, B, 100, 22) };
    shake(&mut c, &mut b_of_c, &mut now);
    let packet = c.seal(&[5; 60]);
    assert_eq!(b.open(&packet), Err(Unopened::WrongSession), "in another's name");
    assert_eq!(b_of_c.open(&packet), Ok(vec![5; 60]));
}

#[test]
fn nothing_is_sealed_before_the_other_host_is_there_and_it_is_greeted_once_a_second() {
    let mut a = Host::new(A, B, 100, 11);
    let mut packet = [0; 100];
    assert!(!a.session.seal(VNI, &mut packet) && packet == [0; 100]);
    let minute = (0..60_000).filter_map(|ms| a.hello(Nanos::ZERO + Span::millis(ms))).count();
    assert!((60..70).contains(&minute), "{minute} hellos");
}

#[test]
fn who_starts_again_is_heard_again_and_its_old_frames_are_not() {
    let (mut a, mut b, mut now) = pair();
    let old = [a.seal(&[1; 60]), a.seal(&[2; 60])];
    assert_eq!(b.open(&old[0]), Ok(vec![1; 60]));
    // Clocks that went on, stood still and went back.
    for first in [200, 200, 50] {
        a = Host::new(A, B, first, now.as_u64());
        shake(&mut a, &mut b, &mut now);
        for old in &old {
            assert_eq!(b.open(old), Err(Unopened::WrongSession));
        }
        let (there, back) = (a.seal(&[3; 60]), b.seal(&[4; 60]));
        assert_eq!(b.open(&there), Ok(vec![3; 60]), "number {first}");
        assert_eq!(a.open(&back), Ok(vec![4; 60]), "number {first}");
    }
}

/// After a restart it no longer knows which frames it had opened.
#[test]
fn a_receiver_that_starts_again_takes_nothing_from_before() {
    let (mut a, mut b, mut now) = pair();
    let old = a.seal(&[1; 60]);
    assert_eq!(b.open(&old), Ok(vec![1; 60]));
    let said = a.hello(now + LONGEST_GAP);
    a.session.want_hello(now);
    let said = said.or_else(|| a.hello(now + LONGEST_GAP)).expect("asked for");
    b = Host::new(B, A, 200, 23);
    assert_eq!(b.open(&old), Err(Unopened::WrongSession), "before it has greeted");
    assert_eq!((b.greet(&said, now), b.session.accepted), (Greeted::Known, None), "said to an earlier life");
    shake(&mut a, &mut b, &mut now);
    assert_eq!(b.open(&old), Err(Unopened::WrongSession));
    let new = a.seal(&[2; 60]);
    assert_eq!(b.open(&new), Ok(vec![2; 60]));
}

#[test]
fn hellos_that_are_sent_again_end_no_session() {
    let (mut a, mut b, mut now) = (Host::new(A, B, 100, 11), Host::new(B, A, 100, 22), Nanos::ZERO);
    let mut said = shake(&mut a, &mut b, &mut now);
    a = Host::new(A, B, 300, 12);
    said.extend(shake(&mut a, &mut b, &mut now));
    b = Host::new(B, A, 300, 24);
    said.extend(shake(&mut a, &mut b, &mut now));
    for hello in said {
        now += Span::secs(1);
        (_, _) = (a.greet(&hello, now), b.greet(&hello, now));
        let there = a.seal(&[3; 60]);
        assert_eq!(b.open(&there), Ok(vec![3; 60]));
        let back = b.seal(&[4; 60]);
        assert_eq!(a.open(&back), Ok(vec![4; 60]));
    }
}

/// An attacker that has recorded hellos of earlier lives of both hosts sends them again as fast as they are looked at.
#[test]
fn hellos_that_are_sent_again_keep_no_session_from_beginning() {
    let (mut a, mut b, mut now) = (Host::new(A, B, 100, 11), Host::new(B, A, 100, 22), Nanos::ZERO);
    let said = shake(&mut a, &mut b, &mut now);
    // Either of them starts again, and then both.
    for (life, (of_a, of_b)) in (30..).zip([(true, false), (false, true), (true, true)]) {
        let restart = |own, peer, start| Host::new(own, peer, now.as_u64(), start);
        a = if of_a { restart(A, B, life) } else { a };
        b = if of_b { restart(B, A, life + 100) } else { b };
        let mut turns = 0;
        while !(a.session.is_live() && b.session.is_live()) {
            let before = |host: &mut Host, now| said.iter().for_each(|hello| _ = host.greet(hello, now));
            for _ in 0..10 {
                now += Span::millis(1);
                before(&mut a, now);
                before(&mut b, now);
            }
            let (to_b, to_a) = (a.hello(now), b.hello(now));
            now += Span::micros(100);
            to_b.into_iter().for_each(|hello| _ = b.greet(&hello, now));
            to_a.into_iter().for_each(|hello| _ = a.greet(&hello, now));
            turns += 1;
            assert!(turns < 100, "in life {life}: {:?} {:?}", a.session, b.session);
        }
        let there = a.seal(&[3; 60]);
        assert_eq!(b.open(&there), Ok(vec![3; 60]));
    }
}

/// From two frames of one key and number an attacker can take the difference, and forge a third.
#[test]
fn no_number_has_two_keys_and_no_key_begins_again() {
    let (mut a, mut b, mut now) = pair();
    let mut seen = std::collections::BTreeSet::new();
    for life in 0..6 {
        // Frames of zeros only show the keys' stream.
        let packet = a.seal(&[0; 64]);
        assert!(seen.insert(packet[SEALED_HEAD..].to_vec()), "life {life}");
        match life % 3 {
            0 => b = Host::new(B, A, 100, 30 + life),
            1 => a = Host::new(A, B, 100, 11),
            // It starts again with the same start.
            _ => b = Host::new(B, A, 100, 22),
        }
        shake(&mut a, &mut b, &mut now);
    }
}

#[test]
fn keys_change_on_the_way_and_frames_overtake_the_change() {
    let (mut a, mut b, _) = pair();
    let skip = |host: &mut Host, to: u64| host.session.sealer.as_mut().expect("live").next = to;
    skip(&mut a, (1 << GENERATION) - 2);
    let packets: Vec<Vec<u8>> = (0..4).map(|n| a.seal(&[n; 60])).collect();
    for n in [0, 2, 1, 3] {
        assert_eq!(b.open(&packets[n]), Ok(vec![n as u8; 60]), "{n}");
    }
    // All frames of some keys were lost.
    skip(&mut a, 9 << GENERATION);
    let packets: Vec<Vec<u8>> = (0..2).map(|n| a.seal(&[n; 60])).collect();
    assert_eq!(b.open(&packets[1]), Ok(vec![1; 60]));
    assert_eq!(b.open(&packets[0]), Ok(vec![0; 60]));
}

/// A right head in front of other bytes is tried up to a bound, and then once; the frame itself opens before that.
#[test]
fn a_copied_head_costs_only_so_much() {
    let (mut a, mut b, _) = pair();
    let mut forged = a.seal(&[1; 60]);
    let real = forged.clone();
    forged[SEALED_HEAD] ^= 1;
    assert_eq!(b.open(&forged), Err(Unopened::Forged));
    assert_eq!(b.open(&real), Ok(vec![1; 60]));
    let next = a.seal(&[2; 60]);
    forged[..SEALED_HEAD].copy_from_slice(&next[..SEALED_HEAD]);
    let tried = (0..1_000_000).filter(|_| b.open(&forged) == Err(Unopened::Forged)).count();
    assert!(tried <= 102, "tried {tried} times at one moment");
    let later = a.seal(&[3; 60]);
    assert_eq!(b.open(&later), Ok(vec![3; 60]), "others are taken as before");
    // Without the key the check fails first.
    forged[0] ^= 1;
    assert_eq!(b.open(&forged), Err(Unopened::WrongSession));
}

/// A hello from one host to another without the fleet's key: it names `start` as the start of its receiver.
fn forged(from: HostId, to: HostId, start: u64) -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[0] = VERSION;
    hello[2..6].copy_from_slice(&from.0.to_be_bytes());
    hello[6..10].copy_from_slice(&to.0.to_be_bytes());
    hello[26..34].copy_from_slice(&start.to_be_bytes());
    hello
}

#[test]
fn only_so_many_hellos_are_looked_at_in_a_hosts_name() {
    let (mut a, mut b, now) = pair();
    for start in [0, 22] {
        let answers: Vec<Greeted> = (0..100_000).map(|_| b.greet(&forged(A, B, start), now)).collect();
        let looked = answers.iter().filter(|&&answer| answer == Greeted::Forged).count();
        assert!((1..=14).contains(&looked), "{looked}");
    }
    let frame = a.seal(&[1; 60]);
    assert_eq!(b.open(&frame), Ok(vec![1; 60]), "the session lives on");
}

/// Forged hellos in a hundred names cost no more than a bound, and a host with a name of its own is heard all the same.
#[test]
fn hellos_in_all_names_together_cost_only_so_much() {
    const HOSTS: u32 = 100;
    let mut sealing = Sealing::new(&KEY, B, 100, 22);
    sealing.set_hosts(HOSTS as usize);
    let mut sessions: Vec<Session> = (0..HOSTS).map(|host| sealing.session(HostId(10 + host))).collect();
    let (first, others) = sessions.split_first_mut().expect("some");
    let mut a = Host::new(HostId(10), B, 100, 11);
    let (mut looked, mut begun) = (0, 0);
    for ms in 0..1_000 {
        let now = Nanos::ZERO + Span::millis(ms);
        // Ten thousand a second in each name but one.
        for (session, host) in others.iter_mut().zip(11..) {
            for n in 0..10 {
                let answer = session.greet(&mut sealing, &forged(HostId(host), B, 22 * (n % 2)), now);
                looked += u32::from(answer == Greeted::Forged);
            }
        }
        let hello = a.hello(now);
        begun +=
            u32::from(hello.is_some_and(|hello| first.greet(&mut sealing, &hello, now) == Greeted::Begun));
        let hello = first.hello(&sealing, now);
        hello.into_iter().for_each(|hello| _ = a.greet(&hello, now));
        assert!(ms < 30 || first.is_live() && a.session.is_live(), "both know it after {ms} ms");
    }
    assert_eq!(begun, 1);
    assert!((20_000..31_000).contains(&looked), "{looked} of 990,000");
}

/// An attacker that does not read what the hosts say floods one of them in the other's name.
#[test]
fn forged_hellos_in_its_own_name_keep_no_host_from_a_session() {
    for restarts_flooded in [false, true] {
        let (mut a, mut b, mut now) = pair();
        let end = now + Span::secs(3);
        let last = if restarts_flooded { &mut b } else { &mut a };
        *last = Host::new(last.sealing.host, last.session.peer, 200, 33);
        while !(a.session.is_live() && b.session.is_live()) {
            assert!(now < end, "{restarts_flooded}: {:?} {:?}", a.session, b.session);
            now += Span::millis(1);
            (1_000..2_000).for_each(|start| _ = b.greet(&forged(A, B, start), now));
            let (to_b, to_a) = (a.hello(now), b.hello(now));
            to_a.into_iter().for_each(|hello| _ = a.greet(&hello, now));
            to_b.into_iter().for_each(|hello| _ = b.greet(&hello, now));
        }
    }
}

#[test]
fn a_changed_hello_counts_for_nothing() {
    let (mut a, mut b) = (Host::new(A, B, 100, 11), Host::new(B, A, 100, 22));
    let hello = a.hello(Nanos::ZERO).expect("the first is due at once");
    for at in 0..HELLO * 8 {
        let mut changed = hello;
        changed[at / 8] ^= 1 << (at % 8);
        let now = Nanos::ZERO + Span::millis(1 + at as u64);
        assert_eq!(b.greet(&changed, now), Greeted::Forged, "bit {at}");
    }
    let other = Sealing::new(&[8; 32], A, 100, 11).session(B).hello(&a.sealing, Nanos::ZERO);
    let other_key = Sealing::new(&[8; 32], A, 100, 11);
    let forged = other_key.session(B).hello(&other_key, Nanos::ZERO).expect("due");
    assert_ne!(other.expect("due"), forged);
    assert_eq!(b.greet(&forged, Nanos::ZERO + Span::secs(9)), Greeted::Forged);
    assert_eq!(b.greet(&hello[..HELLO - 1], Nanos::ZERO + Span::secs(9)), Greeted::Forged);
}

/// The slow, obviously right model: a set of all numbers that have come.
#[derive(Default)]
struct Model {
    seen: std::collections::BTreeSet<u64>,
}

impl Model {
    fn take(&mut self, number: u64) -> bool {
        let newest = self.seen.last().copied();
        number < u64::MAX
            && newest.is_none_or(|newest| newest < number || newest + 1 - number <= WINDOW)
            && self.seen.insert(number)
    }
}

/// Numbers with small and large steps between them.
fn numbers() -> impl Strategy<Value = Vec<u64>> {
    let step = prop_oneof![8 => -200_i64..220, 2 => -9_000_i64..9_000, 1 => -70_000_i64..70_000];
    (0_u64..100_000, proptest::collection::vec(step, 1..400)).prop_map(|(first, steps)| {
        let mut at = first;
        steps
            .into_iter()
            .map(|step| {
                at = at.saturating_add_signed(step);
                at
            })
            .collect()
    })
}

proptest! {
    /// A number is accepted once, and while it is no older than the window.
    #[test]
    fn the_window_is_as_a_set_of_all_numbers(numbers in numbers()) {
        let (mut window, mut model) = (Window::default(), Model::default());
        for number in numbers {
            let new = window.is_new(number);
            if new {
                window.mark(number);
            }
            prop_assert_eq!(new, model.take(number), "{}", number);
        }
    }

    /// For anything that the fabric does, each frame that was sent opens once at most and unchanged, and no other frame opens.
    #[test]
    fn each_frame_opens_once_and_as_it_was(
        sent in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..20),
        fabric in proptest::collection::vec((any::<proptest::sample::Index>(), any::<proptest::sample::Index>(), 0_u8..4), 1..100),
    ) {
        let (mut a, mut b, _) = pair();
        let packets: Vec<Vec<u8>> = sent.iter().map(|frame| a.seal(frame)).collect();
        let mut opened = vec![false; sent.len()];
        for (which, at, change) in fabric {
            let which = which.index(sent.len());
            let mut packet = packets[which].clone();
            match change {
                0 => {
                    let bit = at.index(packet.len() * 8);
                    packet[bit / 8] ^= 1 << (bit % 8);
                }
                1 => packet.truncate(at.index(packet.len())),
                _ => {}
            }
            let came = b.open(&packet);
            if change < 2 || opened[which] {
                prop_assert!(came.is_err());
            } else {
                prop_assert_eq!(came.as_ref(), Ok(&sent[which]));
                opened[which] = true;
            }
        }
    }

    #[test]
    fn any_bytes_are_turned_away(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (_, mut b, now) = pair();
        prop_assert!(b.open(&bytes).is_err());
        prop_assert_eq!(b.greet(&bytes, now), Greeted::Forged);
    }

    /// Hellos are lost, repeated and late, and hosts start again with any clock: once no more faults happen, both have a session.
    #[test]
    fn sessions_begin_whatever_was_lost(
        fates in proptest::collection::vec((0_u8..4, any::<u16>()), 0..80),
    ) {
        let (mut a, mut b, mut now) = (Host::new(A, B, 100, 11), Host::new(B, A, 100, 22), Nanos::ZERO);
        let mut recorded: Vec<[u8; HELLO]> = Vec::new();
        for (n, (fate, value)) in (1_000_u64..).zip(fates) {
            now += Span::millis(20);
            match fate {
                0 => a = Host::new(A, B, value.into(), n),
                1 => b = Host::new(B, A, value.into(), n),
                _ => {}
            }
            let (to_b, to_a) = (a.hello(now), b.hello(now));
            recorded.extend(to_b.into_iter().chain(to_a));
            if fate == 2 && !recorded.is_empty() {
                let old = recorded[usize::from(value) % recorded.len()];
                (_, _) = (a.greet(&old, now), b.greet(&old, now));
            }
            if fate == 3 {
                to_b.into_iter().for_each(|hello| _ = b.greet(&hello, now));
                to_a.into_iter().for_each(|hello| _ = a.greet(&hello, now));
            }
        }
        // A host without the present key of the other one notices it by frames that do not open.
        now += LONGEST_GAP.times(2);
        let (mut to_a, mut to_b) = (vec![0; 100], vec![0; 100]);
        if b.session.seal(VNI, &mut to_a) {
            _ = a.session.open(VNI, &mut to_a, now);
        }
        if a.session.seal(VNI, &mut to_b) {
            _ = b.session.open(VNI, &mut to_b, now);
        }
        shake(&mut a, &mut b, &mut now);
        let (there, back) = (a.seal(&[3; 60]), b.seal(&[4; 60]));
        prop_assert_eq!(b.open(&there), Ok(vec![3; 60]));
        prop_assert_eq!(a.open(&back), Ok(vec![4; 60]));
    }
}
