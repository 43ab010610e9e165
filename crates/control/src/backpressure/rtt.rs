//! Round-trip times, measured in passing.
//!
//! Why: the marking interval that holds a flow to a rate grows with the square of its round trip.
//! From: RFC 7323 §3 by *pping* (Nichols): a timestamp and its echo are a segment and its answer; without timestamps, data and its
//! acknowledgement (Karn's rule: nothing that is sent twice is timed); SYN, SYN-ACK and ACK. MIMIC §V-A takes the round trip as
//! given.
//! Not here: reading headers (`wire`), which flows are measured: a driver measures heavy hitters only.
//! Invariant: constant state for each flow, and one comparison for each segment; a measured half is from [`LEAST`] to [`MOST`].
//!
//! An observer between both ends sees two halves of each round trip: from a segment to its answer, on either side of it. The
//! whole is their sum, so it is known once both sides have answered.
//!
//! **The least counts, not the mean.** An answer can be late for many reasons (it waits for data, for a second segment, in the
//! very queue that backpressure shortens), and early for none. The least of the last 10 to 20 seconds is the round trip of the
//! path once queues are short, which is what holds while the flow keeps to its rate. A longer path after a change of routes is
//! known after 20 seconds.
//!
//! **Few segments are read.** Once both sides have answered, a connection with timestamps rests for [`REST`]. What goes by meanwhile is
//! not seen, so the first timestamp after that is not timed: a segment before it may have carried it, and be answered earlier.
//!
//! **Liars.** A segment is timed only by an answer that repeats its very timestamp, or acknowledges its bytes and none that were
//! not sent: a host that does not see the flow has to guess 32 bits. An end that lies changes the interval of its own flow only:
//! less than its round trip gets it more marks; more gets it fewer, and a flow that stays above its target is metered.

use plimsoll_units::{Nanos, Span};

/// A TCP segment that passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number of its first byte.
    pub seq: u32,
    /// Sequence numbers that it takes.
    pub len: u32,
    /// What it acknowledges.
    pub acknowledged: Option<u32>,
    /// TSval and TSecr.
    pub timestamps: Option<(u32, u32)>,
}

/// The round-trip time of one connection.
///
/// ```
/// use plimsoll_control::backpressure::{RoundTrip, Segment};
/// use plimsoll_units::{Nanos, Span};
///
/// let at = |us| Nanos::ZERO + Span::micros(us);
/// let data = |seq, stamps| Segment { seq, len: 1_448, acknowledged: Some(1), timestamps: Some(stamps) };
/// let answer = |of, stamps| Segment { seq: 1, len: 0, acknowledged: Some(of), timestamps: Some(stamps) };
/// let mut round = RoundTrip::default();
/// round.note(true, &data(1, (499, 899)), at(0));
/// round.note(false, &answer(1_449, (900, 499)), at(300));
/// assert_eq!(round.get(), None, "earlier segments may have had these timestamps");
/// round.note(true, &data(1_449, (500, 900)), at(2_000));
/// round.note(false, &answer(2_897, (901, 500)), at(2_300));
/// assert_eq!(round.get(), None, "the half to the sender is not known yet");
/// round.note(true, &data(2_897, (501, 901)), at(2_770));
/// assert_eq!(round.get(), Some(Span::micros(770)));
/// assert!(round.rests(at(2_771)) && !round.rests(at(20_000)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrip {
    /// From here to the receiver and back, and from here to the sender and back.
    halves: [Half; 2],
    rests_until: Nanos,
}

/// Answers from one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Half {
    /// What is to be answered, and since when.
    asked: Option<(Asked, Nanos)>,
    /// The newest TSval that went there.
    stamp: Option<u32>,
    /// Whether an answer was timed since the last rest.
    timed: bool,
    /// The highest sequence number that went there.
    sent: Option<u32>,
    /// The least of this generation, and of the one before.
    least: [Option<Span>; 2],
    /// When this generation began.
    began: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// This TSval is to be repeated.
    Stamp(u32),
    /// The bytes before this sequence number are to be acknowledged.
    Bytes(u32),
}

impl RoundTrip {
    /// What a handshake showed: the half to the side that answered the SYN, and the half to the side that sent it.
    #[must_use]
    pub fn of_handshake([there, back]: [Span; 2], now: Nanos) -> Self {
        let half = |took| Half { least: [Some(bounded(took)), None], began: now, ..Half::default() };
        Self { halves: [half(there), half(back)], rests_until: now }
    }

    /// The connection as seen by flows of the other direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        let [there, back] = self.halves;
        Self { halves: [back, there], ..self }
    }

    /// Whether segments need not be read now.
    #[inline]
    #[must_use]
    pub fn rests(&self, now: Nanos) -> bool {
        now < self.rests_until
    }

    /// Until when segments need not be read.
    #[inline]
    #[must_use]
    pub fn rests_until(&self) -> Nanos {
        self.rests_until
    }

    /// Handles a segment of the flow (`forwards`), or one that its receiver sends back.
    #[inline]
    pub fn note(&mut self, forwards: bool, segment: &Segment, now: Nanos) {
        if self.rests(now) {
            return;
        }
        let [there, back] = &mut self.halves;
        let (answers, asks) = if forwards { (back, there) } else { (there, back) };
        answers.answer(segment, now);
        asks.ask(segment, now);
        if self.halves.iter().all(|half| half.timed && half.stamp.is_some()) {
            self.rest(now);
        }
    }

    /// Without timestamps a segment that is sent again would be taken for a new one after a rest.
    fn rest(&mut self, now: Nanos) {
        self.rests_until = now + REST;
        for half in &mut self.halves {
            (half.asked, half.stamp, half.timed) = (None, None, false);
        }
    }

    /// The round trip: the least of the last 10 to 20 seconds, from 20 us to 2 s. `None` until both sides
    /// have answered.
    #[must_use]
    pub fn get(&self) -> Option<Span> {
        let [there, back] = self.halves.map(|half| half.get());
        Some(there? + back?)
    }
}

impl Half {
    fn get(&self) -> Option<Span> {
        self.least.into_iter().flatten().min()
    }

    /// Notes a segment on its way to this side.
    fn ask(&mut self, segment: &Segment, now: Nanos) {
        let end = segment.seq.wrapping_add(segment.len);
        let before = self.sent;
        if segment.len > 0 && before.is_none_or(|sent| is_after(end, sent)) {
            self.sent = Some(end);
        }
        let asked = match segment.timestamps {
            // A stamp covers a millisecond or more of segments: the first one is timed, where it is seen.
            Some((stamp, _)) => match self.stamp {
                Some(newest) if !is_after(stamp, newest) => return,
                newest => {
                    self.stamp = Some(stamp);
                    if newest.is_none() {
                        return;
                    }
                    Asked::Stamp(stamp)
                }
            },
            None if segment.len == 0 => return,
            None if before.is_some_and(|sent| is_after(sent, segment.seq)) => {
                // Sent again: an answer may be to either.
                self.asked = self.asked.filter(|(asked, _)| matches!(asked, Asked::Stamp(_)));
                return;
            }
            None => Asked::Bytes(end),
        };
        if self.asked.is_none_or(|(_, since)| now.since(since) > MOST) {
            self.asked = Some((asked, now));
        }
    }

    /// Notes a segment that comes from this side.
    fn answer(&mut self, segment: &Segment, now: Nanos) {
        let Some((asked, since)) = self.asked else { return };
        let Some(acknowledged) = segment.acknowledged else { return };
        let answered = match (asked, segment.timestamps) {
            (Asked::Stamp(stamp), Some((_, echo))) if echo == stamp => true,
            // Its own answer was lost.
            (Asked::Stamp(stamp), Some((_, echo))) if is_after(echo, stamp) => {
                self.asked = None;
                false
            }
            (Asked::Bytes(end), _) => {
                let sent = self.sent.unwrap_or(end);
                !is_after(end, acknowledged) && !is_after(acknowledged, sent)
            }
            (Asked::Stamp(_), _) => false,
        };
        if answered {
            self.asked = None;
            self.take(now.since(since), now);
        }
    }

    fn take(&mut self, took: Span, now: Nanos) {
        if took > MOST {
            return;
        }
        if now.since(self.began) >= GENERATION {
            let before = self.least[0].filter(|_| now.since(self.began) < GENERATION.times(2));
            (self.least, self.began) = ([None, before], now);
        }
        let took = bounded(took);
        self.timed = true;
        self.least[0] = Some(self.least[0].map_or(took, |least| least.min(took)));
    }
}

/// The handshakes of connections whose flows may become heavy hitters, in a table of fixed size: a newer connection takes the
/// place of an older one.
///
/// Connections are known by hashes of 64 bits, which must be keyed: no sender may choose whose place it takes. `connection` is
/// equal for both directions, `flow` differs.
#[derive(Clone, Debug)]
pub struct Handshakes {
    slots: Box<[Option<Handshake>]>,
    /// A bit for each flow whose ACK is awaited, so that any other segment costs one look.
    awaited: [u64; AWAITED / 64],
    /// When all bits were cleared last: connections that never end their handshake leave theirs.
    cleared: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Handshake {
    connection: u64,
    /// The flow with the SYN.
    flow: u64,
    /// The sequence number that the next step acknowledges.
    next: u32,
    step: Step,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The SYN passed.
    Asked(Nanos),
    /// The SYN-ACK passed, this much later.
    Answered(Span, Nanos),
    /// The ACK passed.
    Done([Span; 2]),
}

impl Default for Handshakes {
    fn default() -> Self {
        Self { slots: vec![None; HANDSHAKES].into(), awaited: [0; AWAITED / 64], cleared: Nanos::ZERO }
    }
}

impl Handshakes {
    /// Bytes of the table, which is allocated once.
    pub const BYTES: usize = HANDSHAKES * size_of::<Option<Handshake>>() + AWAITED / 8;

    /// Handles a segment with SYN.
    pub fn open(&mut self, connection: u64, flow: u64, segment: &Segment, now: Nanos) {
        if now.since(self.cleared) > MOST {
            (self.awaited, self.cleared) = ([0; AWAITED / 64], now);
        }
        let next = segment.seq.wrapping_add(1);
        let known = &mut self.slots[connection as usize % HANDSHAKES];
        let Some(acknowledged) = segment.acknowledged else {
            let repeated = known.is_some_and(|known| known.connection == connection && known.next == next);
            // An answer could be to either of two SYNs.
            *known = (!repeated).then_some(Handshake { connection, flow, next, step: Step::Asked(now) });
            return;
        };
        let Some(known) = known.as_mut().filter(|known| known.connection == connection && known.flow != flow)
        else {
            return;
        };
        if let Step::Asked(since) = known.step
            && acknowledged == known.next
        {
            (known.step, known.next) = (Step::Answered(now.since(since), now), next);
            let (word, bit) = place(known.flow);
            self.awaited[word] |= bit;
        }
    }

    /// Whether a segment of this flow may be the ACK of a handshake.
    #[inline]
    #[must_use]
    pub fn awaits(&self, flow: u64) -> bool {
        let (word, bit) = place(flow);
        self.awaited[word] & bit != 0
    }

    /// Handles a segment without SYN of a flow that is awaited.
    pub fn end(&mut self, connection: u64, flow: u64, segment: &Segment, now: Nanos) {
        let known = self.slots[connection as usize % HANDSHAKES].as_mut();
        let Some(known) = known.filter(|known| (known.connection, known.flow) == (connection, flow)) else {
            return;
        };
        if let Step::Answered(there, since) = known.step
            && segment.acknowledged == Some(known.next)
        {
            known.step = Step::Done([there, now.since(since)]);
            let (word, bit) = place(flow);
            self.awaited[word] &= !bit;
        }
    }

    /// The round trip as a flow of this connection sees it, if its handshake passed and ended.
    #[must_use]
    pub fn of(&self, connection: u64, flow: u64, now: Nanos) -> Option<RoundTrip> {
        let known =
            self.slots[connection as usize % HANDSHAKES].filter(|known| known.connection == connection)?;
        let Step::Done(halves) = known.step else { return None };
        if halves.iter().any(|half| *half > MOST) {
            return None;
        }
        let round = RoundTrip::of_handshake(halves, now);
        Some(if known.flow == flow { round } else { round.reversed() })
    }
}

/// The word and the bit of a flow that is awaited.
fn place(flow: u64) -> (usize, u64) {
    // The lower bits choose the slot of other tables.
    let bit = (flow >> 32) as usize % AWAITED;
    (bit / 64, 1 << (bit % 64))
}

/// Whether `a` comes after `b`, as sequence numbers and timestamps go round (RFC 9293 §3.4).
fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

fn bounded(took: Span) -> Span {
    took.clamp(LEAST, MOST)
}

/// The least half of a round trip: what is below it is forged, or a path on which the interval is one packet anyway.
pub const LEAST: Span = Span::micros(10);
/// The most half of a round trip. A later answer is none.
pub const MOST: Span = Span::secs(1);

/// How long segments are not read after both sides have answered.
pub const REST: Span = Span::millis(10);

/// How long a least counts at the least; at most twice as long.
const GENERATION: Span = Span::secs(10);

const HANDSHAKES: usize = 4_096;
const AWAITED: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(us: u64) -> Nanos {
        Nanos::ZERO + Span::micros(us)
    }

    fn plain(seq: u32, len: u32, acknowledged: u32) -> Segment {
        Segment { seq, len, acknowledged: Some(acknowledged), timestamps: None }
    }

    fn stamped(seq: u32, len: u32, acknowledged: u32, stamps: (u32, u32)) -> Segment {
        Segment { timestamps: Some(stamps), ..plain(seq, len, acknowledged) }
    }

    /// Data at 0 and each 10 us, an ACK 200 us later, and data for it 500 us after that: 700 us, whatever number the clocks show.
    #[test]
    fn timestamps_show_both_halves() {
        let mut round = RoundTrip::default();
        for (n, start) in [(0, u32::MAX - 1), (1, u32::MAX), (2, 0), (3, 1)] {
            let base = 1_000 * u64::from(n);
            // Ten segments of one stamp: the first one counts.
            (0..10).for_each(|k| {
                round.note(true, &stamped(n * 10 + k, 1, 0, (start, 50 + n)), at(base + 10 * u64::from(k)))
            });
            round.note(false, &stamped(0, 0, n * 10 + 5, (51 + n, start)), at(base + 200));
            round.note(true, &stamped(n * 10 + 10, 1, 0, (start, 51 + n)), at(base + 700));
        }
        assert_eq!(round.get(), Some(Span::micros(700)));
        assert_eq!(round.reversed().get(), round.get());
    }

    /// Another segment with the same timestamp may have passed before measuring began, or during a rest.
    #[test]
    fn the_first_timestamp_is_not_timed() {
        let mut round = RoundTrip::default();
        let mut exchange = |stamp: u32, start: u64, took: u64| {
            round.note(true, &stamped(stamp, 1, 0, (stamp, stamp)), at(start));
            round.note(false, &stamped(0, 0, stamp, (stamp + 1, stamp)), at(start + took));
            round.note(true, &stamped(stamp, 0, 0, (stamp, stamp + 1)), at(start + 2 * took));
            (round.get(), round.rests(at(start + 2 * took)))
        };
        assert_eq!(exchange(10, 0, 20), (None, false));
        assert_eq!(exchange(20, 2_000, 400), (Some(Span::micros(800)), true));
        assert_eq!(exchange(30, 4_000, 20), (Some(Span::micros(800)), true), "it rests");
        assert_eq!(exchange(40, 20_000, 20), (Some(Span::micros(800)), false));
        assert_eq!(exchange(50, 22_000, 300), (Some(Span::micros(600)), true));
    }

    #[test]
    fn without_timestamps_data_and_its_acknowledgement_are_timed_and_nothing_that_is_sent_twice() {
        let mut half = RoundTrip::default();
        half.note(true, &plain(1, 100, 1), at(0));
        half.note(false, &plain(1, 0, 101), at(300));
        assert_eq!((half.halves[0].get(), half.get()), (Some(Span::micros(300)), None));
        // Sent again: the answer may be to the first.
        half.note(true, &plain(101, 100, 1), at(400));
        half.note(true, &plain(101, 100, 1), at(900));
        half.note(false, &plain(1, 0, 201), at(910));
        assert_eq!(half.halves[0].get(), Some(Span::micros(300)));
        // More than was sent.
        half.note(true, &plain(201, 100, 1), at(1_000));
        half.note(false, &plain(1, 0, 500), at(1_001));
        assert_eq!(half.halves[0].get(), Some(Span::micros(300)));
        // The other side sends as well.
        half.note(false, &plain(1, 50, 301), at(2_000));
        half.note(true, &plain(301, 0, 51), at(2_400));
        assert_eq!(half.get(), Some(Span::micros(700)));
    }

    #[test]
    fn the_least_of_the_last_generations_counts() {
        let mut round = RoundTrip::default();
        let mut exchange = |second: u64, took: u64| {
            let (n, start) = (10 * second as u32, at(second * 1_000_000));
            round.note(true, &stamped(n, 1, 0, (n - 1, n)), at(second * 1_000_000 - 9_000));
            round.note(false, &stamped(0, 0, n, (n, n)), at(second * 1_000_000 - 8_000));
            round.note(true, &stamped(n, 1, 0, (n, n)), start);
            round.note(false, &stamped(0, 0, n, (n + 1, n)), start + Span::micros(took));
            round.note(true, &stamped(n, 0, 0, (n, n + 1)), start + Span::micros(2 * took));
            round.get()
        };
        assert_eq!(exchange(1, 100), Some(Span::micros(200)));
        assert_eq!(exchange(2, 5_000), Some(Span::micros(200)), "a late answer");
        assert_eq!(exchange(12, 5_000), Some(Span::micros(200)), "the generation before");
        assert_eq!(exchange(23, 5_000), Some(Span::millis(10)), "the path is longer now");
        assert_eq!(exchange(60, 7_000), Some(Span::millis(14)), "nothing was measured for long");
    }

    #[test]
    fn forged_and_late_answers_stay_within_bounds() {
        let mut round = RoundTrip::default();
        round.note(true, &stamped(0, 1, 0, (9, 0)), at(0));
        round.note(true, &stamped(1, 1, 0, (10, 0)), at(0));
        round.note(false, &stamped(0, 0, 1, (5, 9)), at(1));
        round.note(false, &stamped(0, 0, 1, (5, 10)), at(1));
        assert_eq!(round.halves[0].get(), Some(LEAST), "it is no shorter");
        let mut late = RoundTrip::default();
        late.note(true, &stamped(0, 1, 0, (9, 0)), at(0));
        late.note(true, &stamped(1, 1, 0, (10, 0)), at(0));
        late.note(false, &stamped(0, 0, 1, (5, 10)), at(1_000_001));
        assert_eq!(late.halves[0].get(), None, "an answer after a second is none");
        late.note(true, &stamped(2, 1, 0, (1_010, 0)), at(1_100_000));
        late.note(false, &stamped(0, 0, 1, (6, 1_010)), at(1_100_400));
        assert_eq!(late.halves[0].get(), Some(Span::micros(400)));
    }

    fn syn(seq: u32, acknowledged: Option<u32>) -> Segment {
        Segment { seq, len: 1, acknowledged, timestamps: None }
    }

    #[test]
    fn a_handshake_shows_both_halves_before_any_data() {
        let mut handshakes = Handshakes::default();
        handshakes.open(7, 70, &syn(100, None), at(0));
        handshakes.open(7, 71, &syn(500, Some(101)), at(300));
        assert!(handshakes.awaits(70) && handshakes.of(7, 70, at(400)).is_none());
        handshakes.end(7, 70, &plain(101, 0, 501), at(800));
        let round = handshakes.of(7, 70, at(900)).expect("it passed");
        assert_eq!((round.get(), round.halves[0].get()), (Some(Span::micros(800)), Some(Span::micros(300))));
        assert_eq!(handshakes.of(7, 71, at(900)), Some(round.reversed()));
        assert_eq!(handshakes.of(7 + HANDSHAKES as u64, 70, at(900)), None, "another one of the same place");
    }

    #[test]
    fn a_handshake_that_is_repeated_or_guessed_is_not_timed() {
        let mut handshakes = Handshakes::default();
        handshakes.open(7, 70, &syn(100, None), at(0));
        handshakes.open(7, 70, &syn(100, None), at(1_000));
        handshakes.open(7, 71, &syn(500, Some(101)), at(1_001));
        assert!(!handshakes.awaits(70), "it may answer either SYN");
        handshakes.open(8, 80, &syn(100, None), at(0));
        handshakes.open(8, 81, &syn(500, Some(77)), at(10));
        assert!(!handshakes.awaits(80));
        handshakes.open(8, 81, &syn(500, Some(101)), at(300));
        handshakes.end(8, 80, &plain(101, 0, 5), at(310));
        assert_eq!(handshakes.of(8, 80, at(400)), None);
        handshakes.end(8, 80, &plain(101, 0, 501), at(500));
        assert_eq!(handshakes.of(8, 80, at(600)).and_then(|round| round.get()), Some(Span::micros(500)));
    }

    /// A flood of SYNs takes no memory, and leaves what other segments cost as it was.
    #[test]
    fn a_flood_of_handshakes_takes_no_memory_and_is_forgotten() {
        let mut handshakes = Handshakes::default();
        for n in 0..100_000_u64 {
            let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            handshakes.open(hash, hash, &syn(1, None), at(n));
            handshakes.open(hash, !hash, &syn(1, Some(2)), at(n));
        }
        handshakes.open(1, 1, &syn(1, None), at(2_000_000));
        assert!((0..1 << 20).all(|n: u64| !handshakes.awaits(n << 32)));
        assert_eq!(handshakes.slots.len() * size_of::<Option<Handshake>>() + AWAITED / 8, Handshakes::BYTES);
    }

    proptest! {
        /// Whatever both ends send: no panic, and a round trip within its bounds.
        #[test]
        fn stays_within_bounds(
            segments in proptest::collection::vec(
                (any::<bool>(), 0_u64..3_000_000, 0_u32..9, 0_u32..5, any::<Option<u8>>(), any::<Option<(u8, u8)>>()), 1..200),
        ) {
            let (mut round, mut now) = (RoundTrip::default(), Nanos::ZERO);
            for (forwards, gap, seq, len, acknowledged, stamps) in segments {
                now += Span::micros(gap);
                let timestamps = stamps.map(|(value, echo)| (u32::from(value % 8), u32::from(echo % 8)));
                let acknowledged = acknowledged.map(|number| u32::from(number % 12));
                round.note(forwards, &Segment { seq, len, acknowledged, timestamps }, now);
                if let Some(rtt) = round.get() {
                    prop_assert!((LEAST.times(2)..=MOST.times(2)).contains(&rtt));
                }
            }
        }

        /// A path of any length is measured exactly once an answer from each side was not late.
        #[test]
        fn a_path_is_measured(
            (there, back) in (20_u64..30_000, 20_u64..30_000), stamps in any::<bool>(),
            late in proptest::collection::vec(0_u64..3, 30..60),
        ) {
            let (mut round, mut now, mut seq) = (RoundTrip::default(), at(0), u32::MAX - 5_000);
            for (n, late) in (0_u32..).zip(late) {
                // The first timestamps after a rest are not timed.
                let late = if (7..10).contains(&n) { 0 } else { late };
                now += REST;
                let stamp = |value| stamps.then_some((value, value));
                round.note(true, &Segment { seq, len: 100, acknowledged: Some(n), timestamps: stamp(2 * n) }, now);
                seq = seq.wrapping_add(100);
                now += Span::micros(there + there * late / 2);
                let answer = Segment { seq: n, len: 1, acknowledged: Some(seq), timestamps: Some((2 * n + 1, 2 * n)) };
                round.note(false, &Segment { timestamps: answer.timestamps.filter(|_| stamps), ..answer }, now);
                now += Span::micros(back + back * late / 2);
                let reply = Segment { seq, len: 0, acknowledged: Some(n + 1), timestamps: Some((2 * n, 2 * n + 1)) };
                round.note(true, &Segment { timestamps: reply.timestamps.filter(|_| stamps), ..reply }, now);
            }
            let rtt = round.get().expect("both sides answered").as_u64() / 1_000;
            prop_assert_eq!(rtt, there + back);
        }
    }
}
