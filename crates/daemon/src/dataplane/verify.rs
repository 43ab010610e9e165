//! Trust, but verify: some packets that a client classified itself are classified again.
//!
//! Why: a client that posts a packet to another class's flow queue gets a service that the packet must not have; looking
//! each packet up would cost as much as the client's classifying saves.
//! From: SENIC §5.1: sample headers, compare the queue, and escalate: alert, halt, forced classification.
//! Not here: a packet's class (`policy`), and checks of what the client writes (`ports`).
//! Invariant: each packet is drawn with the same probability, whatever the client sends and when; a client that is forced
//! stays so until the next policy.

use std::hash::BuildHasher;

use plimsoll_nic::{QueueId, Refusal};
use plimsoll_policy::Metadata;
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::Parsed;

use super::drops::Event;
use super::flows::Hashed;
use super::{Dataplane, fields_of};

/// Draws the packets to look at: each with the same probability, independently.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// A packet is looked at if its draw is at most this; none when absent.
    bound: Option<u64>,
    state: u64,
}

/// What is looked at again, and what came of it.
#[derive(Debug)]
pub(crate) struct Verifying {
    /// Draws the packets that are classified again after a client has classified them.
    pub(crate) sampler: Sampler,
    /// Consequences of clients' wrong packets, by lane, until [`Dataplane::take_steps`].
    pub(crate) steps: Vec<(usize, Step)>,
}

impl Default for Verifying {
    fn default() -> Self {
        Self { sampler: Sampler::new(ONE_IN, seed()), steps: Vec::new() }
    }
}

/// One in this many packets is looked at, unless the operator states another number.
pub const ONE_IN: u32 = 100;

impl Sampler {
    /// A sampler of one in `one_in` packets; 0: none. Clients must not be able to guess the seed.
    #[must_use]
    pub fn new(one_in: u32, seed: u64) -> Self {
        Self { bound: u64::MAX.checked_div(one_in.into()), state: seed | 1 }
    }

    /// Sets another rate; the random sequence continues.
    pub fn set(&mut self, one_in: u32) {
        self.bound = u64::MAX.checked_div(one_in.into());
    }

    /// Whether to look at this packet (xorshift64*, Vigna 2016).
    #[inline]
    pub fn draw(&mut self) -> bool {
        let Some(bound) = self.bound else { return false };
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) <= bound
    }
}

/// How far a client is trusted to classify its packets itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// No wrong packet is known.
    #[default]
    Full,
    /// Packets were found in wrong flow queues: how many, and when the last. The operator has been told.
    Alerted(u32, Nanos),
    /// No frame is taken from it until this time, as further packets were wrong.
    Halted(Nanos),
    /// The daemon classifies each of its packets.
    Forced,
}

/// The consequence of a client's wrong packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The operator is told.
    Alert,
    /// It is not served for `HALT`.
    Halt,
    /// The daemon classifies each of its packets.
    Force,
}

/// The number of wrong packets at which a client is halted.
pub const PATIENCE: u32 = 3;

/// How long it is halted.
pub const HALT: Span = Span::secs(1);

/// After this long without a wrong packet a client has full trust again.
pub const FORGET: Span = Span::secs(60);

/// A seed that clients cannot guess.
pub(super) fn seed() -> u64 {
    std::hash::RandomState::new().hash_one(0_u8)
}

impl Dataplane {
    /// Classifies a client's packet again; answers its right flow queue.
    #[cold]
    pub(super) fn verify(
        &mut self,
        index: usize,
        (queue, drawn): (QueueId, u32),
        parsed: &Parsed,
        now: Nanos,
    ) -> Result<QueueId, Refusal> {
        let Some(lane) = &mut self.tenants.lanes[index] else { return Err(Refusal::NoQueue) };
        lane.tally.event_many(Event::Verified, drawn.into());
        let placement = self
            .policy
            .classifier
            .classify(&self.policy.program, &fields_of(parsed, lane.tenant, Metadata::default()));
        if lane.opened.iter().any(|opened| opened.queue == queue && opened.placement == placement) {
            return Ok(queue);
        }
        lane.tally.event_many(Event::Misclassified, drawn.into());
        for _ in 0..drawn {
            let Some(lane) = &mut self.tenants.lanes[index] else { break };
            let Some(step) = lane.trust.wrong(now) else { continue };
            lane.tally.event(match step {
                Step::Alert => Event::TrustAlert,
                Step::Halt => Event::TrustHalt,
                Step::Force => Event::TrustForced,
            });
            self.verifying.steps.push((index, step));
            if step == Step::Force {
                self.force(index);
            }
        }
        self.queue_for(index, parsed, &Hashed::of(parsed), Metadata::default(), now)
    }
}

impl core::fmt::Display for Step {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Alert => {
                "its client posted a packet to a flow queue of another class; the packet went where it belongs"
            }
            Self::Halt => "its client went on to post packets to wrong flow queues, and is not served for a second",
            Self::Force => {
                "its client still posts packets to wrong flow queues: each is classified here from now on, until a reload"
            }
        })
    }
}

impl Trust {
    /// Notes a packet in a wrong flow queue; answers the consequence, if there is a new one.
    pub fn wrong(&mut self, now: Nanos) -> Option<Step> {
        self.forget(now);
        let (next, step) = match *self {
            Self::Full => (Self::Alerted(1, now), Some(Step::Alert)),
            Self::Alerted(count, _) if count + 1 < PATIENCE => (Self::Alerted(count + 1, now), None),
            Self::Alerted(..) => (Self::Halted(now + HALT), Some(Step::Halt)),
            // Frames that were taken before the halt are still looked at.
            Self::Halted(until) if now < until => return None,
            Self::Halted(_) => (Self::Forced, Some(Step::Force)),
            Self::Forced => return None,
        };
        *self = next;
        step
    }

    /// Until when no frame is taken from the client, if it is halted.
    #[must_use]
    pub fn halted(&self, now: Nanos) -> Option<Nanos> {
        match *self {
            Self::Halted(until) if now < until => Some(until),
            _ => None,
        }
    }

    /// Forgets wrong packets that are long past; a client whose packets the daemon classifies stays so.
    fn forget(&mut self, now: Nanos) {
        if let Self::Alerted(_, last) | Self::Halted(last) = *self
            && now.since(last) > FORGET
        {
            *self = Self::Full;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SE-S2: a client that sends `n` wrong packets is found out with probability 1 - (1 - p)^n. 20,000 clients for each
    /// pair: a share of them differs from its expectation by less than five standard deviations (of which there is less
    /// than one chance in a million), and the seed is fixed besides.
    #[test]
    fn wrong_packets_are_found_with_the_probability_that_senic_states() {
        const CLIENTS: u32 = 20_000;
        for (one_in, n) in [(100, 1), (100, 50), (100, 200), (100, 500), (10, 10), (1_000, 1_000), (2, 3)] {
            let mut sampler = Sampler::new(one_in, 7);
            let mut found = 0;
            for _ in 0..CLIENTS {
                let mut caught = false;
                for _ in 0..n {
                    caught |= sampler.draw();
                }
                found += u32::from(caught);
            }
            let expected = 1.0 - (1.0 - 1.0 / f64::from(one_in)).powi(n);
            let share = f64::from(found) / f64::from(CLIENTS);
            let deviation = (expected * (1.0 - expected) / f64::from(CLIENTS)).sqrt();
            assert!(
                (share - expected).abs() < 5.0 * deviation,
                "1 in {one_in}, {n}: {share}, not {expected}"
            );
        }
    }

    #[test]
    fn none_and_all_are_exact() {
        let count = |one_in| {
            let mut sampler = Sampler::new(one_in, 3);
            (0..10_000).filter(|_| sampler.draw()).count()
        };
        assert_eq!((count(0), count(1)), (0, 10_000));
    }

    #[test]
    fn it_escalates_step_by_step_and_forgives_what_is_long_past() {
        let at = |millis| Nanos::ZERO + Span::millis(millis);
        let mut trust = Trust::default();
        let steps: Vec<_> = (0..3).map(|n| trust.wrong(at(n))).collect();
        assert_eq!(steps, [Some(Step::Alert), None, Some(Step::Halt)]);
        assert_eq!(trust.halted(at(3)), Some(at(1_002)));
        assert_eq!((trust.wrong(at(4)), trust.halted(at(1_002))), (None, None));
        let mut patient = trust;
        assert_eq!((trust.wrong(at(1_500)), trust), (Some(Step::Force), Trust::Forced));
        assert_eq!(trust.wrong(at(900_000)), None, "it stays so");
        assert_eq!(patient.wrong(at(70_000)), Some(Step::Alert), "a minute later it begins anew");
    }
}
