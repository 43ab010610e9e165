//! Which thread serves which tenant.
//!
//! Why: a reload brings ports, and each must reach its tenant's thread.
//! Not here: the ports (`control`), and frames between threads (`dataplane::crossing`).
//! Invariant: a tenant's number is never another one's; it stays on its thread until it is moved (`control`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use plimsoll_policy::{Checked, Unsupported};
use plimsoll_ports::Port;

use crate::dataplane::{Change, Lane, LaneSpec, LeaseRoom, Leasing, Seat, lane_spec, thread_of};

/// Every tenant's number and thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seats {
    threads: usize,
    tenants: BTreeMap<String, Place>,
    /// The number of the next tenant that is new.
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    number: u32,
    thread: usize,
}

/// The new ports of a reload, before it is known which thread gets which.
#[derive(Debug, Default)]
pub(crate) struct NewPorts {
    /// Of tenants that are new; none where another tenant hands over its own.
    pub(crate) added: Vec<(String, Option<Port>)>,
    /// Of tenants that had another one.
    pub(crate) moved: Vec<(String, Port)>,
    /// By whom, and to whom.
    pub(crate) handed: Vec<(String, String)>,
}

impl Seats {
    /// As several engines are made for a policy at the start.
    pub(crate) fn new(checked: &Checked) -> Self {
        let threads = (checked.config.engine.threads as usize).max(1);
        let tenants = checked.config.tenants.iter().zip(0_u32..).map(|(tenant, number)| {
            (tenant.name.clone(), Place { number, thread: thread_of(number as usize, threads) })
        });
        Self { threads, tenants: tenants.collect(), next: checked.config.tenants.len() as u32 }
    }

    /// The thread that serves a tenant.
    pub(crate) fn thread(&self, name: &str) -> usize {
        self.tenants.get(name).map_or(0, |place| place.thread)
    }

    /// Every tenant and its thread, by name.
    pub(crate) fn all(&self) -> Vec<(String, usize)> {
        self.tenants.iter().map(|(name, place)| (name.clone(), place.thread)).collect()
    }

    /// Notes that another thread serves a tenant from now on.
    pub(crate) fn set_thread(&mut self, name: &str, thread: usize) {
        if let Some(place) = self.tenants.get_mut(name) {
            place.thread = thread;
        }
    }

    /// The tenants of a hand-over that are on different threads, if there are any.
    pub(crate) fn apart<'a>(&self, handed: &'a [(String, String)]) -> Option<&'a (String, String)> {
        let on_two = |(from, to): &&(String, String)| {
            self.tenants.get(to).is_some_and(|place| place.thread != self.thread(from))
        };
        handed.iter().find(on_two)
    }

    /// Seats for the tenants of a new policy: those that stay keep theirs, and a new one goes where there are the fewest, or
    /// to the tenant whose port it gets.
    fn follow(&mut self, new: &Checked, handed: &[(String, String)]) {
        let from: BTreeMap<&String, usize> =
            handed.iter().map(|(from, to)| (to, self.thread(from))).collect();
        self.tenants.retain(|name, _| new.config.tenants.iter().any(|tenant| tenant.name == *name));
        for tenant in &new.config.tenants {
            if self.tenants.contains_key(&tenant.name) {
                continue;
            }
            let count = |thread: usize| self.tenants.values().filter(|place| place.thread == thread).count();
            let fewest = (0..self.threads).min_by_key(|&thread| count(thread)).unwrap_or(0);
            let thread = from.get(&tenant.name).copied().unwrap_or(fewest);
            self.tenants.insert(tenant.name.clone(), Place { number: self.next, thread });
            self.next += 1;
        }
    }

    /// The change from one policy to another for each thread, with the ports that are its tenants'.
    ///
    /// # Errors
    /// What the policy states that several threads do not keep.
    pub(crate) fn changes(
        &mut self,
        old: &Checked,
        new: &Checked,
        ports: NewPorts,
    ) -> Result<Vec<Change>, Unsupported> {
        self.follow(new, &ports.handed);
        let several = self.threads > 1;
        let room = several.then(|| LeaseRoom::new(&new.program, self.threads).map(Arc::new)).transpose()?;
        let meeting = several.then(|| Arc::new(Meeting::of(self.threads)));
        let mut changes: Vec<Change> = (0..self.threads).map(|_| Change::between(old, new)).collect();
        for (thread, change) in changes.iter_mut().enumerate() {
            change.meeting = meeting.clone();
            if let Some(room) = &room {
                change.program = Arc::clone(room.program());
                change.leases = Some(Box::new(Leasing::new(Arc::clone(room), thread)));
            }
        }
        for (name, mut port) in ports.added {
            for (thread, change) in changes.iter_mut().enumerate() {
                let place = self.tenants[&name];
                let serves = place.thread == thread;
                let own = if serves { port.take() } else { None };
                let mut spec = lane_spec(new, &name, own);
                if several {
                    let elsewhere = (!serves).then_some(place.thread as u32);
                    spec = LaneSpec { seat: Seat { number: place.number, elsewhere }, ..spec };
                }
                change.added.push(Lane::new(spec));
            }
        }
        for (name, port) in ports.moved {
            let thread = self.thread(&name);
            changes[thread].moved.push((name, port));
        }
        for (from, to) in ports.handed {
            let thread = self.thread(&to);
            changes[thread].handed.push((from, to));
        }
        Ok(changes)
    }
}

/// Where threads wait for each other: none goes on before all are there. In a reload, until all have the new policy.
#[derive(Debug)]
pub struct Meeting {
    missing: AtomicUsize,
}

/// The longest that a thread waits for the others, one of which may have panicked.
const LONGEST: Duration = Duration::from_secs(1);

impl Meeting {
    pub(crate) fn of(threads: usize) -> Self {
        Self { missing: AtomicUsize::new(threads) }
    }

    /// Waits for the others.
    pub(crate) fn meet(&self) {
        let begun = Instant::now();
        self.missing.fetch_sub(1, Ordering::AcqRel);
        while self.missing.load(Ordering::Acquire) > 0 && begun.elapsed() < LONGEST {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}
