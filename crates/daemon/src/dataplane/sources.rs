//! Counts the frames that wait at one station, by the host in whose name they came, where the name is not proven.
//!
//! Why: between hosts that do not seal, an outer address proves nothing. A flood in one host's name must not take the
//! places of other hosts' frames.
//! From: dynamic thresholds (Choudhury and Hahne, 1998): each host may hold a multiple of the free places, so that there is
//! always a free place for another, and one host alone has nearly all of the queue.
//! Not here: sealed frames, which no other host can send; strangers to limits (`control`).
//! Invariant: a host holds at most [`TIMES`] times the places that were free when its last frame came; constant time, fixed
//! memory.

/// How many times the free places one host may hold: alone 32 of 33 places, and beside another host half of 64 of 65.
const TIMES: u32 = 32;

/// Number of counters; hosts that share a counter share a part of the queue.
const PLACES: usize = 64;

/// The frames that wait at one station, by the hosts in whose names they came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sources {
    waiting: [u32; PLACES],
}

impl Default for Sources {
    fn default() -> Self {
        Self { waiting: [0; PLACES] }
    }
}

impl Sources {
    /// The counter of a host of the map.
    #[inline]
    pub(super) fn place(host: Option<usize>) -> Option<u8> {
        host.map(|host| (host % PLACES) as u8)
    }

    /// Whether one more frame may wait while `free` places are free.
    #[inline]
    pub(super) fn admit(&self, place: Option<u8>, free: u32) -> bool {
        place.is_none_or(|place| self.waiting[usize::from(place)] < free.saturating_mul(TIMES))
    }

    /// Counts a frame that begins to wait.
    #[inline]
    pub(super) fn begin(&mut self, place: Option<u8>) {
        if let Some(place) = place {
            self.waiting[usize::from(place)] = self.waiting[usize::from(place)].saturating_add(1);
        }
    }

    /// Counts a frame that waits no longer.
    #[inline]
    pub(super) fn end(&mut self, place: Option<u8>) {
        if let Some(place) = place {
            self.waiting[usize::from(place)] = self.waiting[usize::from(place)].saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u32 = 512;

    fn offer(sources: &mut Sources, held: &mut u32, host: usize) -> bool {
        let place = Sources::place(Some(host));
        let fits = *held < SLOTS && sources.admit(place, SLOTS - *held);
        if fits {
            sources.begin(place);
            *held += 1;
        }
        fits
    }

    #[test]
    fn one_alone_has_nearly_all_and_leaves_room_for_another() {
        let (mut sources, mut held) = (Sources::default(), 0);
        let flood = (0..10_000).filter(|_| offer(&mut sources, &mut held, 1)).count();
        assert_eq!(flood, 497, "32 of 33 parts");
        // One of three frames served is the other host's, which sends as many: it finds a place each time.
        for n in 0..2_000 {
            assert!(offer(&mut sources, &mut held, 2), "frame {n}");
            (0..5).for_each(|_| _ = offer(&mut sources, &mut held, 1));
            [1, 1, 2].into_iter().for_each(|host| sources.end(Sources::place(Some(host))));
            held -= 3;
        }
        // Both hosts have sent all they can: each holds a half.
        (0..1_000).for_each(|_| _ = (offer(&mut sources, &mut held, 1), offer(&mut sources, &mut held, 2)));
        assert!(sources.waiting[2] < sources.waiting[1] + 10 && held > 500, "{:?}", sources.waiting);
    }

    #[test]
    fn what_is_proven_is_not_counted() {
        let sources = Sources { waiting: [u32::MAX; PLACES] };
        assert!(sources.admit(Sources::place(None), 1));
        assert!(!sources.admit(Sources::place(Some(7)), 1));
    }
}
