//! A round of an engine's core: what it fetches and processes before it looks after all else again.
//!
//! Why: an engine polls. A packet that comes while the engine does something else waits until it polls again. On a busy host
//! packets wait for longer rounds, not only in fuller queues: the less time a round leaves, the longer, long before the core is
//! full.
//! From: the order and the bounds of the daemon's `dataplane::inward`.
//! Not here: time, and packets (`receive`).
//! Invariant: a round ends; a packet that comes after the ring was seen empty belongs to the next round.

/// Packets fetched at once; and packets of one tenant that are processed before the next tenant is chosen.
const BATCH: u32 = 32;
const QUANTUM: u32 = 8;
/// Packets fetched in a round, and processed.
const FETCHES: u32 = 16 * BATCH;
const DELIVERIES: u32 = 128;

/// The progress of a round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Round {
    fetched: u32,
    processed: u32,
    /// The ring has been seen empty.
    emptied: bool,
    /// The tenant whose packets are processed, and how many more of them before the next tenant is chosen.
    quantum: Option<(u32, u32)>,
}

/// The next step of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Fetch the ring's oldest packet.
    Fetch,
    /// Process this tenant's oldest packet.
    Process(u32),
    /// All other work of the engine; then a new round begins.
    Rest,
}

impl Round {
    /// Has the next tenant chosen anew: what was processed took longer than a packet.
    pub(crate) fn end_quantum(&mut self) {
        self.quantum = None;
    }

    /// Chooses the next step. `ring` packets are there to be fetched, which `may` be done while others wait; `next` is the
    /// tenant to serve, and `waits` says whether a tenant has a packet.
    pub(crate) fn step(
        &mut self,
        ring: usize,
        may: bool,
        next: Option<u32>,
        waits: impl Fn(u32) -> bool,
    ) -> Step {
        let at_batch = !self.fetched.is_multiple_of(BATCH);
        if let Some((tenant, left)) = self.quantum.filter(|&(tenant, left)| left > 0 && waits(tenant)) {
            self.quantum = Some((tenant, left - 1));
            self.processed += 1;
            return Step::Process(tenant);
        }
        self.quantum = None;
        if !self.emptied && self.fetched < FETCHES && (at_batch || may || next.is_none()) {
            if ring > 0 {
                self.fetched += 1;
                return Step::Fetch;
            }
            self.emptied = true;
        }
        match next {
            Some(tenant) if self.processed < DELIVERIES => {
                self.quantum = Some((tenant, QUANTUM - 1));
                self.processed += 1;
                Step::Process(tenant)
            }
            _ => Step::Rest,
        }
    }

    /// Whether nothing was fetched or processed in this round.
    pub(crate) fn found_nothing(&self) -> bool {
        self.fetched == 0 && self.processed == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetches_what_is_there_first_and_ends_with_the_rest() {
        let mut round = Round::default();
        let (mut ring, mut waiting) = (20, [0_u32; 2]);
        let mut steps = Vec::new();
        loop {
            let next = (0..2).find(|&tenant| waiting[tenant as usize] > 0);
            let step = round.step(ring, true, next, |tenant| waiting[tenant as usize] > 0);
            steps.push(step);
            match step {
                Step::Fetch => {
                    ring -= 1;
                    waiting[ring % 2] += 1;
                }
                // Another packet comes while these are processed: it waits for the next round.
                Step::Process(tenant) => {
                    waiting[tenant as usize] -= 1;
                    ring += 1;
                }
                Step::Rest => break,
            }
        }
        assert_eq!(steps[..20], [Step::Fetch; 20]);
        let processed: Vec<Step> =
            [0, 0, 1, 1].into_iter().flat_map(|tenant| [Step::Process(tenant); 5]).collect();
        assert_eq!(steps[20..40], processed);
        assert_eq!((steps.len(), ring), (41, 20));
    }

    #[test]
    fn a_round_ends_under_any_load() {
        let mut round = Round::default();
        let steps: Vec<Step> = core::iter::repeat_with(|| round.step(1_000, true, Some(7), |_| true))
            .take_while(|&step| step != Step::Rest)
            .collect();
        let fetched = steps.iter().filter(|&&step| step == Step::Fetch).count();
        assert_eq!((fetched, steps.len() - fetched), (FETCHES as usize, DELIVERIES as usize));
        assert_eq!(steps[..BATCH as usize], [Step::Fetch; BATCH as usize]);
    }

    /// Fetching beyond its share waits for a batch's end, and then for a tenant's turn.
    #[test]
    fn fetching_that_may_not_go_on_lets_others_be_served_between_batches() {
        let mut round = Round::default();
        let mut step = || round.step(1_000, false, Some(7), |_| true);
        assert_eq!(step(), Step::Process(7));
    }
}
