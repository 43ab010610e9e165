//! One thread's reports: by member, and only what has changed.
//!
//! Why: what a thread repeats would cost it and the coordinator as much as what is new.
//! Not here: how reports travel (`exchange`), and when they are due (`daemon`, `sim`).
//! Invariant: a thread without traffic reports that once. Allocates only when there are more members than before.

use super::{MemberId, Report};

/// What one thread has reported. Its members have numbers of the thread's own.
#[derive(Clone, Debug, Default)]
pub struct Reporter {
    /// Bytes that had left before these leases began.
    base: Vec<u64>,
    last: Vec<Report>,
    members: Vec<Membership>,
    /// What could not be reported, as joining had to wait.
    again: Vec<(usize, Report)>,
    /// What could not be at the report before.
    waited: Vec<(usize, Report)>,
}

/// Whether the coordinator knows a group of flow queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It has sent nothing yet.
    Unknown,
    /// It is a member.
    Member(MemberId),
    /// It can't be one.
    None,
}

impl Reporter {
    /// Room for the reports of this many members.
    #[must_use]
    pub fn with_capacity(members: usize) -> Self {
        Self {
            base: Vec::with_capacity(members),
            last: Vec::with_capacity(members),
            members: Vec::with_capacity(members),
            again: Vec::with_capacity(members),
            waited: Vec::with_capacity(members),
        }
    }

    /// Leases begin: what has left until now counts for no report.
    pub fn begin(&mut self, rows: impl Iterator<Item = Report>) {
        self.base.clear();
        self.base.extend(rows.map(|row| row.left));
    }

    /// Reports through `send` the members that have changed since the last call, of `rows` in all; `changed` names these, and may name
    /// others, or one several times. Members with something waiting are to be among them. A new one joins by its number through `join`,
    /// which answers `None` if that has to wait. Answers whether anything has changed, or waits.
    pub fn report(
        &mut self,
        rows: usize,
        changed: impl Iterator<Item = (usize, Report)>,
        mut join: impl FnMut(usize) -> Option<Membership>,
        mut send: impl FnMut(MemberId, Report),
    ) -> bool {
        let Self { base, last, members, again, waited } = self;
        last.resize(rows, Report::default());
        members.resize(rows, Membership::Unknown);
        core::mem::swap(again, waited);
        let mut any = false;
        for (number, row) in waited.drain(..).chain(changed) {
            any |= row.waiting > 0;
            if last.get(number).is_none_or(|last| *last == row) {
                continue;
            }
            any = true;
            if members[number] == Membership::Unknown {
                let Some(joined) = join(number) else {
                    again.push((number, row));
                    continue;
                };
                members[number] = joined;
            }
            if let Membership::Member(id) = members[number] {
                let before = base.get(number).copied().unwrap_or(0);
                send(id, Report { left: row.left.wrapping_sub(before), waiting: row.waiting });
            }
            last[number] = row;
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_changed_is_reported_and_a_member_joins_once() {
        let mut reporter = Reporter::default();
        let row = |left, waiting| Report { left, waiting };
        reporter.begin([row(100, 0), row(50, 0)].into_iter());
        let mut ask = |rows: [Report; 2]| {
            let (mut joined, mut sent) = (Vec::new(), Vec::new());
            let join = |number| {
                joined.push(number);
                Some(Membership::Member(MemberId(number as u32)))
            };
            let rows = rows.into_iter().enumerate();
            let any = reporter.report(2, rows, join, |id, report| sent.push((id.0, report)));
            (any, joined, sent)
        };
        let rows = [row(160, 40), row(0, 0)];
        assert_eq!(ask(rows), (true, vec![0], vec![(0, row(60, 40))]));
        assert_eq!(ask(rows), (true, vec![], vec![]), "it waits");
        assert_eq!(ask([row(200, 0), row(0, 0)]), (true, vec![], vec![(0, row(100, 0))]));
        assert_eq!(ask([row(200, 0), row(0, 0)]), (false, vec![], vec![]));
    }

    #[test]
    fn one_that_has_to_wait_joins_at_the_next_report_without_a_change() {
        let mut reporter = Reporter::default();
        let row = Report { left: 9, waiting: 0 };
        assert!(reporter.report(
            1,
            [(0, row)].into_iter(),
            |_| None,
            |_, _| unreachable!("it has not joined")
        ));
        let mut sent = Vec::new();
        let join = |_| Some(Membership::Member(MemberId(3)));
        assert!(reporter.report(1, core::iter::empty(), join, |id, report| sent.push((id, report))));
        assert_eq!(sent, [(MemberId(3), row)]);
        assert!(!reporter.report(1, core::iter::empty(), join, |_, _| unreachable!("it is told")));
    }
}
