//! Cost of sealing a frame between hosts, without anything else.
//!
//! Why: the cipher is to be most of what a sealed packet costs; numbers, checks and windows are to add little.
//! From: the cipher of the same library on the same bytes, with one key and nothing around it.
//! Not here: a whole packet's way (`control`).
//! Invariant: the sides take turns, on the same lengths; each frame has a number of its own; what is charged is processor time.

use anyhow::{Result, ensure};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use plimsoll_control::sealing::{SEALED_HEAD, SEALED_TAG};
use plimsoll_control::{HostId, Sealing, Session};
use plimsoll_units::{Nanos, Span};

use crate::hold::processor_time;
use crate::report::{Goal, Row};
use crate::scheduler::Effort;

/// Bytes of a frame: an acknowledgement, and a full one.
const FRAMES: [usize; 2] = [60, 1_400];
const MOST: usize = SEALED_HEAD + 1_400 + SEALED_TAG;
/// Frames of a batch, which are sealed, and then opened, between two readings of the clock: no more than may overtake
/// one another.
const BATCH: usize = 256;

/// Nanoseconds for each frame of a length.
#[derive(Default)]
struct Costs {
    sealed: Vec<f64>,
    opened: Vec<f64>,
}

/// Rows of sealing and opening alone.
pub fn measure(effort: Effort) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for len in FRAMES {
        let (mut ours, mut bare) = (Costs::default(), Costs::default());
        for _ in 0..effort.rounds {
            ours.add(sessions(effort.packets, len)?);
            bare.add(cipher(effort.packets, len)?);
        }
        let row = |what: &str, bare: &[f64], ours: &[f64]| {
            let row = Row::new(format!("a frame of {len} B {what}"), "the cipher alone", "ns/packet");
            row.figures(bare, ours)
        };
        let seal = row("sealed", &bare.sealed, &ours.sealed);
        let open = row("opened", &bare.opened, &ours.opened);
        let goal = |row: Row| if len > 1_000 { row.goal(Goal::RatioAtMost(1.5)) } else { row };
        rows.extend([goal(seal), goal(open)]);
    }
    Ok(rows)
}

impl Costs {
    fn add(&mut self, [sealed, opened]: [f64; 2]) {
        self.sealed.push(sealed);
        self.opened.push(opened);
    }
}

/// Two hosts with a session.
fn live() -> Result<[Session; 2]> {
    let hosts = [(HostId(1), HostId(2)), (HostId(2), HostId(1))];
    let mut sealings = hosts.map(|(own, _)| Sealing::new(&[7; 32], own, 1, u64::from(own.0)));
    let mut sessions = [0, 1].map(|n| sealings[n].session(hosts[n].1));
    let mut now = Nanos::ZERO;
    for n in [0, 1].into_iter().cycle().take(20) {
        now += Span::millis(50);
        if let Some(hello) = sessions[n].hello(&sealings[n], now) {
            sessions[1 - n].greet(&mut sealings[1 - n], &hello, now);
        }
    }
    ensure!(sessions.iter().all(Session::is_live), "no session: {sessions:?}");
    Ok(sessions)
}

fn sessions(packets: u64, len: usize) -> Result<[f64; 2]> {
    let [mut a, mut b] = live()?;
    in_batches(
        packets,
        len,
        |packet, _| a.seal(7, packet),
        |packet, _| b.open(7, packet, Nanos::ZERO).is_ok(),
    )
}

fn cipher(packets: u64, len: usize) -> Result<[f64; 2]> {
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[7; 32])?);
    let nonce = |number: u64| {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    };
    let seal = |packet: &mut [u8], number| {
        let (frame, place) = packet[SEALED_HEAD..].split_at_mut(len);
        let tag = key.seal_in_place_separate_tag(nonce(number), Aad::from([7; 12]), frame);
        tag.is_ok_and(|tag| {
            place.copy_from_slice(tag.as_ref());
            true
        })
    };
    let open = |packet: &mut [u8], number| {
        key.open_in_place(nonce(number), Aad::from([7; 12]), &mut packet[SEALED_HEAD..]).is_ok()
    };
    in_batches(packets, len, seal, open)
}

/// Seals and opens batches. Returns the nanoseconds a frame of each.
fn in_batches(
    packets: u64,
    len: usize,
    mut seal: impl FnMut(&mut [u8], u64) -> bool,
    mut open: impl FnMut(&mut [u8], u64) -> bool,
) -> Result<[f64; 2]> {
    let whole = SEALED_HEAD + len + SEALED_TAG;
    let mut buffers = vec![[0x5a_u8; MOST]; BATCH];
    let (mut times, mut right, mut number) = ([0.0; 2], true, 0);
    while number < packets {
        let begun = processor_time();
        for (n, buffer) in (number..).zip(&mut buffers) {
            right &= seal(&mut buffer[..whole], n);
        }
        let between = processor_time();
        for (n, buffer) in (number..).zip(&mut buffers) {
            right &= open(&mut buffer[..whole], n);
        }
        times[0] += (between - begun).as_secs_f64();
        times[1] += (processor_time() - between).as_secs_f64();
        number += BATCH as u64;
    }
    ensure!(right, "a frame was not sealed, or not opened");
    Ok(times.map(|time| time * 1e9 / number as f64))
}
