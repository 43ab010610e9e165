//! Table I of MIMIC, with Linux's stacks in a model, and whatever the path does to their packets.

use plimsoll_units::{Nanos, Span};
use proptest::prelude::*;

use super::super::connections::{Connected, Stage};
use super::model::{Fate, World};
use super::*;

const GRANT: EcnFlags = EcnFlags { ae: false, cwr: false, ece: true };
const ASK: EcnFlags = EcnFlags { ae: false, cwr: true, ece: true };

fn syn(sequence: u32, flags: EcnFlags) -> Segment {
    Segment { syn: true, sequence, flags, ..Segment::default() }
}

fn syn_ack(sequence: u32, acknowledged: u32, flags: EcnFlags) -> Segment {
    Segment { ack: true, acknowledged, ..syn(sequence, flags) }
}

fn data(sequence: u32, flags: EcnFlags, ecn: Codepoint) -> Segment {
    Segment { ack: true, sequence, payload: 100, flags, ecn, ..Segment::default() }
}

/// Whether Table I has the sender's stack slow down: client to server, and server to client.
fn table([client, server]: [u8; 2]) -> [bool; 2] {
    [client == 1, server != 0]
}

/// Every seventh packet is marked.
fn marking() -> impl Iterator<Item = Fate> {
    (0_u32..).map(|number| Fate { lost: false, marked: number % 7 == 6 })
}

#[test]
fn table_one_comes_out_exactly() {
    for pair in (0..9).map(|pair| [pair / 3, pair % 3]) {
        let mut world = World::new(pair, [true; 2], [0, u32::MAX - 500], 100);
        assert!(world.run(&mut marking()), "{pair:?} completes");
        let stacks = &world.stacks;
        assert_eq!([0, 1].map(|end: usize| stacks[end].sent_ect), table(pair), "{pair:?}");
        assert_eq!([0, 1].map(|end: usize| stacks[end].reductions > 0), table(pair), "{pair:?}");
        assert_eq!(world.reports.map(|reports| reports > 0), table(pair), "{pair:?}: meters");
        let often = [0, 1].map(|end: usize| stacks[end].reductions <= world.marks[end]);
        assert_eq!(often, [true; 2], "{pair:?}: an echo ends");
        assert_eq!([0, 1].map(|end: usize| stacks[end].ignored), [0; 2], "{pair:?}");
        if pair[0] == 1 && pair[1] != 0 {
            assert_eq!(world.changed, [0; 2], "two willing ends need no mediation");
        }
    }
}

#[test]
fn an_end_without_a_mediating_host_is_served_all_the_same() {
    // The server is willing and its host does not mediate: the client's host alone makes it use ECN, and echoes.
    let mut world = World::new([0, 2], [true, false], [5, 9], 100);
    assert!(world.run(&mut marking()));
    assert!(world.stacks[1].reductions > 0 && world.stacks[0].ignored == 0);
    // No end is willing: an answer in the server's place changes nothing.
    for mediated in [[true, false], [false, true], [true; 2]] {
        let mut world = World::new([2, 0], mediated, [5, 9], 100);
        assert!(world.run(&mut marking()));
        assert_eq!((world.marks, world.reports), ([0; 2], [0; 2]));
        assert!(!world.stacks[0].surprised);
    }
}

fn fates() -> impl Strategy<Value = Vec<(u8, u8)>> {
    proptest::collection::vec((0..100_u8, 0..100_u8), 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever is lost and marked, and whichever hosts mediate: the connection completes; beside a mediating host no mark is
    /// lost on an end that does not use ECN, and no end sees a grant that it did not ask for; a stack uses ECN only if Table I
    /// says so.
    #[test]
    fn losses_break_nothing(
        client in 0..3_u8, server in 0..3_u8, mediated: [bool; 2], sequences: [u32; 2],
        (loss, marks) in (0..30_u8, 0..60_u8), fates in fates(), spares_handshake: bool,
    ) {
        let pair = [client, server];
        let mut world = World::new(pair, mediated, sequences, 60);
        world.spares_handshake = spares_handshake;
        let mut path = fates
            .iter()
            .map(|&(lost, marked)| Fate { lost: lost < loss, marked: marked < marks })
            .chain(marking().take(10_000));
        prop_assert!(world.run(&mut path));
        for end in 0..2_usize {
            let stack = &world.stacks[end];
            if mediated[end] {
                prop_assert_eq!(stack.ignored, 0, "end {}", end);
                prop_assert!(!stack.surprised);
            }
            prop_assert!(table(pair)[end] || !stack.sent_ect && stack.reductions == 0 && world.reports[end] == 0);
            prop_assert!(world.lost > 0 || stack.reductions <= world.marks[end]);
            if mediated == [true; 2] && (spares_handshake || world.lost == 0) {
                prop_assert_eq!(stack.sent_ect, table(pair)[end]);
            }
        }
    }

    /// Whatever segments come: no change of a segment of a connection whose handshake was not seen; no report from a SYN, a
    /// SYN-ACK or what the guest sends; a change of ECE only as the rules say.
    #[test]
    fn any_segments_are_survived(
        segments in proptest::collection::vec(any::<(bool, u8, u8, u8, u8, bool)>(), 0..200),
    ) {
        let mut host: Mediation<u8> = Mediation::new(8, 0);
        let mut opened = [false; 4];
        for (outward, key, bits, flags, ecn, data) in segments {
            let bit = |number: u8| bits >> number & 1 == 1;
            let key = key % 4;
            let segment = Segment {
                syn: bit(0), ack: bit(1), fin: bit(2), rst: bit(3),
                flags: EcnFlags { ae: flags & 1 == 1, cwr: flags & 2 == 2, ece: flags & 4 == 4 },
                ecn: [Codepoint::NotEct, Codepoint::Ect1, Codepoint::Ect0, Codepoint::Ce][usize::from(ecn % 4)],
                sequence: u32::from(bits >> 4 & 1), acknowledged: u32::from(bits >> 5 & 3),
                payload: u32::from(data),
            };
            let (change, report) = if outward {
                (host.outbound(&key, &segment, Nanos::ZERO), false)
            } else {
                host.inbound(&key, &segment, Nanos::ZERO)
            };
            opened[usize::from(key)] |= segment.syn;
            prop_assert!(opened[usize::from(key)] || change.is_none());
            prop_assert!(!report || segment.flags.ece && !segment.syn && !outward);
            prop_assert!(change.ecn.is_none() || !outward && segment.ecn == Codepoint::Ce);
            prop_assert!(change.ece != Some(false) || !outward && segment.syn && segment.ack);
            prop_assert!(change.ece != Some(true) || outward);
            prop_assert!(!segment.rst || change.is_none());
        }
    }
}

#[test]
fn a_syn_that_is_sent_again_is_not_changed() {
    let mut host: Mediation<u8> = Mediation::new(8, 0);
    let plain = syn(7, EcnFlags::default());
    assert_eq!(host.outbound(&0, &plain, Nanos::ZERO).ece, Some(true));
    assert!(host.outbound(&0, &plain, Nanos::ZERO).is_none(), "the first may have been lost for its flags");
    assert_eq!(
        host.outbound(&0, &syn(8, EcnFlags::default()), Nanos::ZERO).ece,
        Some(true),
        "another connection"
    );
    // Linux's fallback: its second SYN does not ask, and so does not get a grant in the server's place.
    let mut server: Mediation<u8> = Mediation::new(8, 0);
    server.inbound(&0, &syn(7, ASK), Nanos::ZERO);
    server.inbound(&0, &plain, Nanos::ZERO);
    assert!(server.outbound(&0, &syn_ack(3, 8, EcnFlags::default()), Nanos::ZERO).is_none());
    assert_eq!(server.counters().granted, 0);
}

#[test]
fn a_handshake_is_no_echo() {
    let mut host: Mediation<u8> = Mediation::new(8, 0);
    assert_eq!(host.inbound(&0, &syn(7, ASK), Nanos::ZERO), (Change::NONE, false));
    assert!(host.outbound(&0, &syn_ack(1, 8, GRANT), Nanos::ZERO).is_none());
    assert_eq!(
        host.inbound(&0, &data(8, EcnFlags::default(), Codepoint::Ect0), Nanos::ZERO),
        (Change::NONE, false)
    );
    assert_eq!(
        host.inbound(&0, &data(108, GRANT, Codepoint::Ce), Nanos::ZERO),
        (Change::NONE, true),
        "an echo"
    );
    assert_eq!(host.counters(), MediationCounters { reports: 1, ..MediationCounters::default() });
}

/// Of a connection that is older than the host, what the guest sends tells which echoes are its peer's.
#[test]
fn a_connection_older_than_the_host_is_only_metered() {
    let mut host: Mediation<u8> = Mediation::new(8, 0);
    let now = Nanos::ZERO;
    let none = EcnFlags::default();
    let echo = |acknowledged| Segment { acknowledged, ..data(50, GRANT, Codepoint::Ce) };
    assert_eq!(host.inbound(&0, &echo(1_000), now), (Change::NONE, false), "the guest has sent nothing");
    let sent = Segment { acknowledged: 50, ..data(1_000, none, Codepoint::NotEct) };
    // An acknowledgement or a reset, which anyone can ask a guest for, makes no connection.
    assert!(host.outbound(&0, &Segment { payload: 0, ..sent }, now).is_none());
    assert!(host.outbound(&0, &Segment { rst: true, ..sent }, now).is_none());
    assert_eq!(host.inbound(&0, &echo(1_000), now), (Change::NONE, false));
    assert!(host.outbound(&0, &sent, now).is_none());
    assert_eq!(host.inbound(&0, &echo(1_100), now), (Change::NONE, true));
    for acknowledged in [1_101, 1_000_u32.wrapping_sub(257 << 10), 1 << 31] {
        assert_eq!(host.inbound(&0, &echo(acknowledged), now), (Change::NONE, false), "{acknowledged}");
    }
    // Accurate ECN: with AE seen, the flags count marks and are no echo. A forged AE does not end reports.
    let counts = EcnFlags { ae: true, cwr: false, ece: true };
    assert_eq!(host.inbound(&0, &data(1 << 30, counts, Codepoint::Ect0), now), (Change::NONE, false));
    assert_eq!(host.inbound(&0, &echo(1_100), now), (Change::NONE, true));
    assert_eq!(host.inbound(&0, &Segment { flags: counts, ..echo(1_100) }, now), (Change::NONE, false));
    assert_eq!(host.inbound(&0, &echo(1_100), now), (Change::NONE, false));
}

/// What anyone can send who does not see the connection: it changes nothing and asks for no meter.
#[test]
fn a_segment_with_numbers_of_its_own_does_nothing() {
    let (now, none) = (Nanos::ZERO, EcnFlags::default());
    let opened = || {
        let mut host: Mediation<u8> = Mediation::new(8, 0);
        host.outbound(&0, &syn(0x7000_0000, none), now);
        host.inbound(&0, &syn_ack(0x1000_0000, 0x7000_0001, GRANT), now);
        let sent = Segment { acknowledged: 0x1000_0001, ..data(0x7000_0001, none, Codepoint::NotEct) };
        assert!(host.outbound(&0, &sent, now).is_none());
        (host, sent)
    };
    let own = Segment { acknowledged: 0x7000_0065, ..data(0x1000_0001, GRANT, Codepoint::Ce) };
    for forged in [
        Segment { sequence: 1, acknowledged: 1, ..own },
        Segment { acknowledged: 1, ..own },
        Segment { sequence: 1, ..own },
        Segment { acknowledged: own.acknowledged + 1, ..own },
        Segment { ack: false, ..own },
    ] {
        let (mut host, sent) = opened();
        assert_eq!(host.inbound(&0, &forged, now), (Change::NONE, false), "{forged:?}");
        assert!(host.outbound(&0, &sent, now).is_none(), "no echo and no CWR");
        // A forged CWR ends no echo.
        assert!(host.inbound(&0, &own, now).1);
        let heard = Segment { flags: EcnFlags { cwr: true, ..none }, ecn: Codepoint::Ect0, ..forged };
        host.inbound(&0, &heard, now);
        let change = host.outbound(&0, &sent, now);
        assert_eq!((change.ece, change.cwr), (Some(true), Some(true)));
    }
}

/// Three times around the sequence numbers, mostly without an echo: each one that comes is answered.
#[test]
fn an_echo_after_gigabytes_without_one_is_answered() {
    let (now, none) = (Nanos::ZERO, EcnFlags::default());
    let mut host: Mediation<u8> = Mediation::new(8, 0);
    host.outbound(&0, &syn(7, none), now);
    host.inbound(&0, &syn_ack(1, 8, GRANT), now);
    let step = 8 << 20;
    let (mut next, mut answered) = (8_u32, 0);
    for number in 0..1_600_u32 {
        let sent =
            Segment { sequence: next, acknowledged: 2, payload: step, ..data(0, none, Codepoint::NotEct) };
        answered += u32::from(host.outbound(&0, &sent, now).cwr == Some(true));
        next = next.wrapping_add(step);
        // Echoes 2.5 GiB apart.
        let flags = if number % 319 == 0 { GRANT } else { none };
        let back = Segment { acknowledged: next, payload: 0, ..data(2, flags, Codepoint::NotEct) };
        assert_eq!(host.inbound(&0, &back, now).1, flags.ece);
    }
    assert_eq!(answered, 6);
}

/// Mediation ends: connections that are made to use ECN go on, and no new one begins.
#[test]
fn a_drained_table_keeps_its_connections_and_takes_no_new_ones() {
    let (now, none) = (Nanos::ZERO, EcnFlags::default());
    let mut host: Mediation<u8> = Mediation::new(8, 0);
    host.outbound(&0, &syn(7, none), now);
    host.inbound(&0, &syn_ack(1, 8, GRANT), now);
    let ack = Segment { ack: true, sequence: 8, acknowledged: 2, ..Segment::default() };
    host.outbound(&0, &ack, now);
    host.drain(true);
    assert!(!host.is_idle(now));
    let marked = Segment { acknowledged: 8, ..data(2, none, Codepoint::Ce) };
    assert_eq!(host.inbound(&0, &marked, now).0.ecn, Some(Codepoint::Ect0));
    assert_eq!(host.outbound(&0, &ack, now).ece, Some(true));
    // New ones, on other ports and on the same, as a client and as a server.
    assert!(host.outbound(&1, &syn(7, none), now).is_none());
    host.inbound(&2, &syn(7, ASK), now);
    assert!(host.outbound(&2, &syn_ack(1, 8, none), now).is_none());
    assert!(host.outbound(&3, &data(1, none, Codepoint::NotEct), now).is_none());
    let mut other = host.clone();
    assert!(other.outbound(&0, &syn(900, none), now).is_none());
    other.inbound(&0, &syn(70, ASK), now);
    assert!(other.outbound(&0, &syn_ack(80, 71, none), now).is_none());
    assert!(other.outbound(&0, &data(81, none, Codepoint::NotEct), now).is_none());
    assert_eq!(other.inbound(&0, &marked, now), (Change::NONE, false));
    assert_eq!((other.counters().asked, other.counters().granted, other.counters().full), (1, 0, 0));
    assert!(other.is_idle(now + Span::secs(3)));
    assert!(!host.is_idle(now + Span::secs(599)) && host.is_idle(now + Span::secs(600)));
    host.drain(false);
    assert_eq!(host.outbound(&1, &syn(7, none), now).ece, Some(true));
}

#[test]
fn accurate_ecn_is_left_alone() {
    let accurate = EcnFlags { ae: true, cwr: true, ece: true };
    let answer = EcnFlags { ae: false, cwr: true, ece: false };
    let [mut client, mut server]: [Mediation<u8>; 2] = [Mediation::new(8, 0), Mediation::new(8, 0)];
    let now = Nanos::ZERO;
    assert!(client.outbound(&0, &syn(7, accurate), now).is_none());
    server.inbound(&0, &syn(7, accurate), now);
    assert!(server.outbound(&0, &syn_ack(1, 8, answer), now).is_none());
    assert_eq!(client.inbound(&0, &syn_ack(1, 8, answer), now), (Change::NONE, false));
    for flags in [ASK, GRANT, EcnFlags { ae: true, ..GRANT }] {
        for host in [&mut client, &mut server] {
            assert_eq!(host.inbound(&0, &data(9, flags, Codepoint::Ce), now), (Change::NONE, false));
            assert!(host.outbound(&0, &data(9, flags, Codepoint::Ect0), now).is_none());
        }
    }
    // A server that knows only RFC 3168 grants that; one that knows neither is granted for, and the client believes in ECN.
    let mut server: Mediation<u8> = Mediation::new(8, 0);
    server.inbound(&0, &syn(7, accurate), now);
    let change = server.outbound(&0, &syn_ack(1, 8, EcnFlags::default()), now);
    assert_eq!((change.ece, change.cwr), (Some(true), None));
}

#[test]
fn a_peer_that_reflects_what_was_asked_grants_nothing() {
    let mut host: Mediation<u8> = Mediation::new(8, 0);
    host.outbound(&0, &syn(7, EcnFlags::default()), Nanos::ZERO);
    let (change, _) = host.inbound(&0, &syn_ack(1, 8, ASK), Nanos::ZERO);
    assert_eq!((change.ece, change.cwr), (Some(false), Some(false)), "it is hidden from the guest");
    let (change, report) = host.inbound(&0, &data(2, EcnFlags::default(), Codepoint::Ce), Nanos::ZERO);
    assert!(change.is_none() && !report);
}

#[test]
fn both_ends_may_open_at_once() {
    // No end asks; each host does. Both SYNs cross, then both SYN-ACKs.
    let mut hosts: [Mediation<u8>; 2] = [Mediation::new(8, 0), Mediation::new(8, 0)];
    let now = Nanos::ZERO;
    for host in &mut hosts {
        assert_eq!(host.outbound(&0, &syn(7, EcnFlags::default()), now).ece, Some(true));
    }
    for host in &mut hosts {
        host.inbound(&0, &syn(7, ASK), now);
        host.outbound(&0, &syn_ack(7, 8, EcnFlags::default()), now);
    }
    for host in &mut hosts {
        assert_eq!(host.inbound(&0, &syn_ack(7, 8, GRANT), now).0.ece, Some(false));
        // Neither stack uses ECN, so nothing is ECT and nothing is marked; a mark would be echoed for the guest.
        assert!(host.outbound(&0, &data(8, EcnFlags::default(), Codepoint::NotEct), now).is_none());
        assert_eq!(
            host.inbound(&0, &data(8, EcnFlags::default(), Codepoint::Ce), now).0.ecn,
            Some(Codepoint::Ect0)
        );
        assert_eq!(
            host.outbound(&0, &data(108, EcnFlags::default(), Codepoint::NotEct), now).ece,
            Some(true)
        );
    }
}

/// A client that does not ask, with a server that grants; echoes until CWR, and a CWR for each window of data.
#[test]
fn marks_are_echoed_until_the_sender_says_that_it_heard() {
    let mut host: Mediation<u8> = Mediation::new(8, 0);
    let (now, none) = (Nanos::ZERO, EcnFlags::default());
    host.outbound(&0, &syn(7, none), now);
    host.inbound(&0, &syn_ack(1, 8, GRANT), now);
    let ack = Segment { ack: true, sequence: 8, acknowledged: 2, ..Segment::default() };
    assert!(host.outbound(&0, &ack, now).is_none());
    host.inbound(&0, &data(2, none, Codepoint::Ect1), now);
    let (change, _) = host.inbound(&0, &data(102, none, Codepoint::Ce), now);
    assert_eq!(change.ecn, Some(Codepoint::Ect1), "as the sender's other packets");
    assert_eq!([host.outbound(&0, &ack, now).ece, host.outbound(&0, &ack, now).ece], [Some(true); 2]);
    let heard = EcnFlags { cwr: true, ..none };
    host.inbound(&0, &data(202, heard, Codepoint::Ect1), now);
    assert!(host.outbound(&0, &ack, now).is_none());
    host.inbound(&0, &data(302, heard, Codepoint::Ce), now);
    assert_eq!(host.outbound(&0, &ack, now).ece, Some(true), "CWR, and a new mark");

    // An echo for the guest's own data, although it is not in ECN state: one CWR, the next only for later data.
    let echo = |acknowledged| Segment { acknowledged, ..data(402, GRANT, Codepoint::NotEct) };
    assert!(host.inbound(&0, &echo(8), now).1);
    assert_eq!(host.outbound(&0, &ack, now).cwr, None, "only data has it");
    assert_eq!(host.outbound(&0, &data(8, none, Codepoint::NotEct), now).cwr, Some(true));
    host.inbound(&0, &echo(50), now);
    assert_eq!(host.outbound(&0, &data(108, none, Codepoint::NotEct), now).cwr, None);
    host.inbound(&0, &echo(108), now);
    assert_eq!(host.outbound(&0, &data(208, none, Codepoint::NotEct), now).cwr, Some(true));
}

#[test]
fn ports_that_are_used_again_begin_anew() {
    let mut host: Mediation<u8> = Mediation::new(8, 0);
    let (now, none) = (Nanos::ZERO, EcnFlags::default());
    host.outbound(&0, &syn(7, none), now);
    host.inbound(&0, &syn_ack(1, 8, GRANT), now);
    host.outbound(&0, &data(8, none, Codepoint::NotEct), now);
    host.inbound(&0, &data(2, none, Codepoint::Ce), now);
    // A SYN that anyone could send changes nothing until the guest answers it.
    host.inbound(&0, &syn(500, none), now);
    assert_eq!(host.outbound(&0, &data(108, none, Codepoint::NotEct), now).ece, Some(true));
    assert!(host.outbound(&0, &syn_ack(900, 501, none), now).is_none());
    assert!(host.outbound(&0, &data(901, none, Codepoint::NotEct), now).is_none(), "no ECN in this one");
    assert_eq!(host.table.get(&0, now).and_then(|connection| connection.agreed()), Some((false, false)));
    assert_eq!(host.table.get(&0, now).map(|connection| connection.stage()), Some(Stage::Open));
}

#[test]
fn connections_beyond_the_table_are_counted_and_left_alone() {
    let mut host: Mediation<u32> = Mediation::new(4, 0);
    let now = Nanos::ZERO;
    let asked = (0..100).filter(|key| !host.outbound(key, &syn(7, EcnFlags::default()), now).is_none());
    assert_eq!(asked.count(), 8, "four connections, twice as many slots");
    assert_eq!((host.counters().asked, host.counters().full), (8, 92));
    let left = (0..100).filter(|key| host.table.get(key, now).is_none()).last().expect("92 of them");
    assert_eq!(host.inbound(&left, &data(1, GRANT, Codepoint::Ce), now), (Change::NONE, false));
    let later = now + Span::secs(4);
    assert!(!host.outbound(&left, &syn(9, EcnFlags::default()), later).is_none());
}
