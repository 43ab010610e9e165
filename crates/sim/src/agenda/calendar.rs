//! Calendar queue of the moments in the near future.
//!
//! Why: a heap's cost grows with the number of sources, and so do the cache lines that it walks through.
//! From: Brown's calendar queue (CACM 1988), with a bit for each day that has something, and days that become shorter
//! when they are crowded.
//! Not here: what is beyond the last day (`heap`).
//! Invariant: what is in a day stands in the order of (moment, setting); everything before a day stands in an earlier
//! one, or in today's.

use plimsoll_units::Nanos;

use super::{Entry, SourceId};

/// The days from today on, with the moments of each.
#[derive(Clone, Debug)]
pub(super) struct Calendar {
    /// By day, modulo their number: the first source that has a moment then, if its bit is set.
    firsts: Vec<u32>,
    /// Which days have something.
    days: [u64; WORDS],
    /// Which words of `days` have a bit.
    words: u64,
    /// The number of today, since the beginning.
    today: u64,
    /// A day is 2^this nanoseconds.
    grain: u32,
    /// By source.
    dates: Vec<Date>,
}

/// A source's moment. Those of a day form a ring, the last of which comes before the first.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
struct Date {
    at: u64,
    set: u64,
    next: u32,
    before: u32,
    day: u32,
}

impl Date {
    const NONE: Self = Self { at: 0, set: 0, next: 0, before: 0, day: ABSENT };
}

const DAYS: usize = 4_096;
const WORDS: usize = DAYS / 64;
/// The first `grain`: a year of 262 µs.
const GRAIN: u32 = 6;
/// Moments of one day that an insertion may pass before days are made shorter.
const CROWD: u32 = 16;
const ABSENT: u32 = u32::MAX;

impl Default for Calendar {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Calendar {
    pub(super) fn new(sources: usize) -> Self {
        Self {
            firsts: vec![0; DAYS],
            days: [0; WORDS],
            words: 0,
            today: 0,
            grain: GRAIN,
            dates: vec![Date::NONE; sources],
        }
    }

    pub(super) fn add(&mut self) {
        self.dates.push(Date::NONE);
    }

    /// Exchanges what is scheduled with another calendar. The places of all sources stay here.
    pub(super) fn exchange(&mut self, other: &mut Self) {
        core::mem::swap(self, other);
        core::mem::swap(&mut self.dates, &mut other.dates);
    }

    /// The earliest entry.
    #[inline]
    pub(super) fn first(&self) -> Option<Entry> {
        let source = self.firsts[self.day_after(self.today as usize % DAYS)?];
        let date = &self.dates[source as usize];
        Some(Entry::new(Nanos::new(date.at), date.set, source))
    }

    /// Moves today to `now`: nothing is inserted before it any more.
    #[inline]
    pub(super) fn turn_to(&mut self, now: Nanos) {
        self.today = self.today.max(now.as_u64() >> self.grain);
    }

    /// Whether there is a day for this moment.
    #[inline]
    pub(super) fn covers(&self, at: Nanos) -> bool {
        at.as_u64() >> self.grain < self.today + DAYS as u64
    }

    #[inline]
    pub(super) fn moment(&self, source: SourceId) -> Option<Nanos> {
        let date = &self.dates[source as usize];
        (date.day != ABSENT).then(|| Nanos::new(date.at))
    }

    /// Inserts the entry of a source that has none here, set later than all others; `true` when its day is crowded.
    #[inline]
    pub(super) fn insert(&mut self, entry: Entry) -> bool {
        let (at, source) = (entry.at().as_u64(), entry.source());
        let day = (at >> self.grain).max(self.today) as usize % DAYS;
        let mut date = Date { at, set: entry.set(), next: source, before: source, day: day as u32 };
        if self.days[day / 64] >> (day % 64) & 1 == 0 {
            self.days[day / 64] |= 1 << (day % 64);
            self.words |= 1 << (day / 64);
            self.firsts[day] = source;
            self.dates[source as usize] = date;
            return false;
        }
        let first = self.firsts[day];
        let (mut before, mut walked) = (self.dates[first as usize].before, 0);
        while self.dates[before as usize].at > at {
            walked += 1;
            if before == first {
                self.firsts[day] = source;
                before = self.dates[first as usize].before;
                break;
            }
            before = self.dates[before as usize].before;
        }
        (date.before, date.next) = (before, self.dates[before as usize].next);
        self.dates[date.next as usize].before = source;
        self.dates[before as usize].next = source;
        self.dates[source as usize] = date;
        walked > CROWD && self.grain > 0
    }

    /// Removes a source's moment; `false` if it has none here.
    #[inline]
    pub(super) fn remove(&mut self, source: SourceId) -> bool {
        let Date { next, before, day, .. } = self.dates[source as usize];
        if day == ABSENT {
            return false;
        }
        self.dates[source as usize].day = ABSENT;
        let day = day as usize;
        if next == source {
            self.days[day / 64] &= !(1 << (day % 64));
            if self.days[day / 64] == 0 {
                self.words &= !(1 << (day / 64));
            }
            return true;
        }
        self.dates[next as usize].before = before;
        self.dates[before as usize].next = next;
        if self.firsts[day] == source {
            self.firsts[day] = next;
        }
        true
    }

    /// Halves the days, and returns the entries that they no longer cover.
    pub(super) fn shorten_days(&mut self) -> Vec<Entry> {
        let mut all = Vec::new();
        while let Some(first) = self.first() {
            self.remove(first.source());
            all.push(first);
        }
        self.grain -= 1;
        self.today *= 2;
        if let Some(first) = all.first() {
            self.turn_to(first.at());
        }
        let beyond = all.partition_point(|entry| self.covers(entry.at()));
        // They come in their order, each behind those before it, so that no day is walked through.
        for &entry in &all[..beyond] {
            self.insert(entry);
        }
        all.split_off(beyond)
    }

    /// The first day with something from this one on, around the year.
    #[inline]
    fn day_after(&self, day: usize) -> Option<usize> {
        let (word, bit) = (day / 64, day % 64);
        let here = self.days[word] >> bit;
        if here != 0 {
            return Some(day + here.trailing_zeros() as usize);
        }
        // The days before this one in its own word come last.
        let later = self.words & (u64::MAX << word << 1);
        let words = if later != 0 { later } else { self.words };
        let word = (words != 0).then(|| words.trailing_zeros() as usize)?;
        Some(word * 64 + self.days[word].trailing_zeros() as usize)
    }
}
