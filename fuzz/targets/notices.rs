//! What other hosts ask of flows here: notices that two peers seal, lost, repeated, late or changed on the way, and then the
//! meters that follow from them.
//!
//! Input: steps of 16 bytes: what is done, which peer, which flow and VM, the terms, and how much time passes.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use plimsoll_control::agent::Settings;
use plimsoll_control::backpressure::{MeterSettings, Meters, Terms};
use plimsoll_control::feedback::FLOW;
use plimsoll_control::{
    Agent, BandwidthLaw, HostId, Idle, Laws, Member, Membership, Notice, Rejected, Sealer, Sender, Vnic,
};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

const KEY: [u8; 32] = [7; 32];
const HERE: HostId = HostId(1);
const PEERS: [HostId; 2] = [HostId(2), HostId(3)];
const METERS: usize = 6;
const OF_A_PEER: usize = 4;

fuzz_target!(|data: &[u8]| {
    let mut agent = agent();
    let settings = MeterSettings { meters: METERS, per_peer: OF_A_PEER, ..MeterSettings::default() };
    let mut meters: Meters<([u8; 6], [u8; 6], [u8; FLOW])> = Meters::new(settings);
    let mut sealers = PEERS.map(|peer| Sealer::new(&KEY, peer, 1, 1));
    let mut sent: Vec<Vec<u8>> = Vec::new();
    let mut now = Nanos::ZERO;
    let mut heard = 0;
    for step in data.chunks_exact(16).take(200) {
        let (peer, place) = (usize::from(step[1] & 1), usize::from(step[2]));
        now += Span::micros(u64::from(step[3]) * 20_000);
        let answer = match step[0] % 4 {
            0 => {
                let mut message = Vec::new();
                let notices: Vec<Notice> = (0..=step[4] % 20).map(|n| notice(step, n)).collect();
                sealers[peer].seal_notices(HERE, &notices, &mut message);
                sent.push(message.clone());
                let answer = agent.handle_message(&message, now);
                assert!(answer.is_ok(), "it is new, and sealed");
                answer
            }
            // It comes again.
            1 if !sent.is_empty() => {
                let answer = agent.handle_message(&sent[place % sent.len()], now);
                assert_eq!(answer, Err(Rejected::Stale));
                answer
            }
            // It was changed.
            2 if !sent.is_empty() => {
                let mut message = sent[place % sent.len()].clone();
                let at = usize::from(step[5]) % message.len();
                message[at] ^= step[6].max(1);
                let answer = agent.handle_message(&message, now);
                assert!(answer.is_err());
                answer
            }
            _ => {
                let answer = agent.handle_message(step, now);
                assert!(answer.is_err(), "no host sealed it");
                answer
            }
        };
        let before = heard;
        while let Some((from, notice)) = agent.poll_notice() {
            heard += 1;
            let owner = PEERS.iter().position(|known| *known == from).expect("a peer sealed it");
            assert_eq!(notice.receiver, vm(PEERS[owner]), "each speaks for its own VM only");
            let _ =
                meters.install((notice.receiver.mac, notice.sender, notice.flow), from, notice.terms, now);
        }
        assert!(answer.is_ok() || heard == before, "what is refused changes nothing");
        let listed = meters.list(now);
        assert!(listed.len() <= METERS);
        for peer in PEERS {
            assert!(meters.owned_by(peer) <= OF_A_PEER);
        }
        assert!(listed.iter().all(|(_, held)| held.meter.rate() >= BitRate::mbps(1)));
    }
    meters.expire(now + Span::secs(61));
    assert!(meters.is_empty(), "nothing holds for longer than a minute after its last request");
});

fn vm(host: HostId) -> Vnic {
    Vnic { network: 7, mac: [2, 0, 0, 0, 0, host.0 as u8] }
}

fn agent() -> Agent {
    let member = |(place, host): (usize, &HostId)| Member {
        name: "shop".to_owned(),
        vnic: vm(*host),
        host: place,
        sender: Sender::default(),
    };
    let vms = PEERS.iter().enumerate().map(member).collect();
    let members = Membership::new(HERE, PEERS.to_vec(), vms, vec![(7, Sender::default())], None);
    let laws = Laws { bandwidth: BandwidthLaw::default(), packets: None, idle: Idle::Lent, fabric: None };
    let settings = Settings { epoch: Span::millis(1), lapse: Span::millis(50), laws };
    Agent::new(settings, &KEY, [1_000, 1], Arc::new(members), Nanos::ZERO)
}

fn notice(step: &[u8], n: u8) -> Notice {
    let whose = HostId(u32::from(step[7].wrapping_add(n) % 5));
    let mut flow = [0; FLOW];
    flow[0] = step[8].wrapping_add(n) % 16;
    let number =
        |at: usize| u64::from_be_bytes([0, 0, 0, 0, step[at], step[at + 1], step[at + 2], step[at + 3]]);
    let terms = Terms {
        rate: BitRate::new(number(9).max(1)).expect("at least 1"),
        burst: Bytes::new(number(11)),
        lifetime: Span::millis(number(12) >> 8),
    };
    let sender = [2, 0, 0, 0, 1, step[13] % 2];
    Notice { receiver: vm(whose), flow, sender, terms }
}
