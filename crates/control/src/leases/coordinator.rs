//! The coordinator: from threads' reports to the rate of each member, once each epoch.
//!
//! Not here: how one source is divided (`fill`), and each thread's parts (`parts`).
//! Invariant: a member that no report names for some epochs costs nothing; nothing is allocated after [`Coordinator::new`] but
//! for members that join.

use plimsoll_policy::{Counts, LimitId, NodeKind, Placement, Program, SHARES_WITHIN, Scope, Unsupported};
use plimsoll_units::{Bytes, Nanos, Span};

use super::balance::Sums;
use super::fill::{Fill, Source, is_less};
use super::lease::Lease;
use super::limit::Limit;
use super::member::{Behind, Demand, Limits, Member, Track, UNHELD};
use super::parts::Parts;
use super::rates::{Elapsed, Factor};
use super::tree::{Tree, for_threads};
use crate::PerMille;

/// Sizes and times of a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Threads that share the link, 1 to 64.
    pub threads: usize,
    /// Members that there may be.
    pub members: usize,
    /// How long a lease lasts, 50 to 200 us.
    pub epoch: Span,
}

/// The flow queues of one thread that have one class and pass the same limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u32);

/// What a thread says of a member. Bytes are as charged: overhead and the headers of all segments included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Bytes that have left since the member joined; wraps.
    pub left: u64,
    /// Bytes that wait.
    pub waiting: u64,
}

/// How exactly threads share, for a metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exactness {
    /// The most that a class was off its part of what all classes with the same bottleneck sent, in thousandths, in the last
    /// window of 10 ms ([`SHARES_WITHIN`]). Counts classes that had something waiting all the time, with at least a thousandth of
    /// the link.
    pub shares: PerMille,
    /// The most bytes that left through a limit, on all threads, before it had earned them, as of an epoch's end.
    pub excess: Bytes,
}

/// A member that can't join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMember {
    /// There are as many as [`Settings::members`] allows.
    #[error("there are as many members as the settings allow")]
    Full,
    /// The placement names no class, or a limit that the policy does not have.
    #[error("the placement names no class of the policy, or no limit of it")]
    Unknown,
}

/// Divides a link among threads. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Coordinator {
    settings: Settings,
    program: Program,
    tree: Tree,
    /// The link's rates, and those of limits by match: two, as each keeps what it knows of its leaves for the next run.
    fill: Fill,
    across: Fill,
    parts: Parts,
    members: Vec<Member>,
    /// Of each member, what it could use, and what limits it.
    demands: Vec<Demand>,
    held: Vec<Limits>,
    /// The first member of each class; [`NONE`] without one.
    first: Vec<u32>,
    /// Members that something was heard of lately.
    active: Vec<u32>,
    limits: Vec<Limit>,
    /// Limits by match, and those with members on several threads.
    listed: Vec<u32>,
    /// By bottleneck: nodes, and then limits.
    sums: Vec<Sums>,
    /// Bits per second that pass a limit, by thread.
    passing: Vec<u64>,
    /// By thread.
    rooms: Vec<Room>,
    /// When the last epoch ended, and which one it was.
    at: Nanos,
    epoch: u64,
    /// When the window ends in which shares are judged.
    window: Nanos,
    exactness: Exactness,
}

/// What a thread gets of the link beside its members' rates, in bits per second.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    /// What its members could use beyond their rates.
    wanted: u64,
    /// What its members should give back beyond what they can.
    owed: u64,
    /// The part of the room that this takes.
    taken: Factor,
}

/// The part of the link below which a class's share is not judged: a few packets would decide.
const LEAST_PART: u64 = 1_000;

/// Marks a class without members.
const NONE: u32 = u32::MAX;

/// The part of a balance, as a divisor, that the next lease makes up for.
const BACK: u64 = 4;

/// [`BACK`] for members that a limit by match holds. With a quarter the parts of a limit that holds many small members swung between
/// threads by up to 8 %. Its bundles are granted bytes before they leave, so what a lease changes is seen later than on the link.
const BACK_BEHIND_LIMIT: u64 = 16;

/// The part of its rate, as a divisor, that a member keeps that has had too much.
const LEAST_LEFT: u64 = 16;

/// The vertex that stands for the link.
const ROOT: u32 = 0;

/// Rounds in which limits and the link answer each other in an epoch. What has not settled goes on in the next one.
const ROUNDS: usize = 4;

impl Coordinator {
    /// A coordinator for a policy, whose threads are idle.
    ///
    /// # Errors
    /// What the policy states that several threads do not keep.
    pub fn new(program: &Program, settings: Settings) -> Result<Self, Unsupported> {
        let program = for_threads(program)?;
        let tree = Tree::new(&program, settings.members);
        // Not cloned: a clone has no spare capacity.
        let [fill, across] = [(); 2].map(|()| Fill::new(tree.nodes + settings.members));
        let parts = Parts::new(&program, &program.spanning(), settings.threads);
        Ok(Self {
            first: vec![NONE; tree.nodes],
            tree,
            across,
            fill,
            parts,
            limits: program.limits.iter().map(Limit::new).collect(),
            members: Vec::with_capacity(settings.members),
            demands: Vec::with_capacity(settings.members),
            held: Vec::with_capacity(settings.members),
            active: Vec::with_capacity(settings.members),
            listed: Vec::with_capacity(program.limits.len()),
            sums: vec![Sums::default(); program.nodes.len() + program.limits.len()],
            passing: vec![0; settings.threads],
            rooms: vec![Room::default(); settings.threads],
            at: Nanos::ZERO,
            epoch: 0,
            window: Nanos::ZERO + SHARES_WITHIN.0,
            exactness: Exactness::default(),
            settings,
            program,
        })
    }

    /// The program for each thread's engine.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Its sizes and times.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Most entries of [`Lease::nodes`].
    #[must_use]
    pub fn most_node_leases(&self) -> usize {
        let behind = self.limits.iter().filter(|limit| limit.by_match).count();
        self.parts.rows() * (1 + behind)
    }

    /// Most entries of [`Lease::limits`].
    #[must_use]
    pub fn most_limit_leases(&self) -> usize {
        self.limits.len()
    }

    /// Adds a member. Members of a thread that have the same placement are one, which joins once.
    ///
    /// # Errors
    /// [`NoMember`].
    pub fn join(&mut self, placement: &Placement, thread: usize) -> Result<MemberId, NoMember> {
        let node = self.program.nodes.get(placement.class.0 as usize).ok_or(NoMember::Unknown)?;
        let known = placement.limits.iter().all(|limit| (limit.0 as usize) < self.program.limits.len());
        if !matches!(node.kind, NodeKind::Class(_)) || !known || thread >= self.settings.threads {
            return Err(NoMember::Unknown);
        }
        if self.members.len() == self.settings.members {
            return Err(NoMember::Full);
        }
        let behind = placement.limits.iter().filter(|limit| self.limits[limit.0 as usize].by_match);
        let behind: Vec<_> = behind.map(|limit| Behind { limit: limit.0, offer: u64::MAX }).collect();
        let measured = placement.limits.iter().any(|&limit| {
            let limit = self.program.limit(limit);
            matches!(limit.scope, Scope::Peer(_)) || limit.counts == Counts::Packets
        });
        let id = self.members.len() as u32;
        let vertex = self.tree.add_member(placement.class);
        self.parts.join(&self.tree, placement.class.0, thread, &placement.limits);
        let leaf = self.leaf_of(placement.class.0, id, vertex);
        self.members.push(Member {
            leaf,
            class: placement.class.0,
            thread: thread as u32,
            held_by: UNHELD,
            is_active: false,
            is_behind: !behind.is_empty(),
            served: 0,
            room: 0,
            balance: 0,
            track: Track::Lost,
            need: 0,
            rate: 0,
            share: 0,
            owes: 0,
        });
        self.demands.push(Demand::new(measured));
        self.held.push(Limits { all: placement.limits.clone(), behind, offer: u64::MAX });
        for limit in &placement.limits {
            let state = &mut self.limits[limit.0 as usize];
            if !state.is_listed && (state.by_match || self.parts.spans_limit(*limit)) {
                state.is_listed = true;
                self.listed.push(limit.0);
            }
            state.members.reserve(self.members.len() - state.members.len());
        }
        Ok(MemberId(id))
    }

    /// The vertex of a new member: its class, unless another member is in that. Then both have vertices of their own.
    fn leaf_of(&mut self, class: u32, id: u32, vertex: u32) -> u32 {
        match core::mem::replace(&mut self.first[class as usize], id) {
            NONE => class,
            other => {
                self.first[class as usize] = other;
                self.members[other as usize].leaf = self.tree.nodes as u32 + other;
                vertex
            }
        }
    }

    /// A thread's report of a member.
    pub fn handle_report(&mut self, member: MemberId, report: Report) {
        let Some(state) = self.members.get_mut(member.0 as usize) else { return };
        self.demands[member.0 as usize].report = report;
        if !state.is_active {
            (state.is_active, state.track) = (true, Track::Lost);
            self.active.push(member.0);
        }
    }

    /// An epoch is over: computes the next leases. `now` must not run backwards.
    pub fn handle_epoch(&mut self, now: Nanos) {
        let elapsed = Elapsed::new(now.since(self.at).max(Span::micros(1)));
        self.at = now;
        self.epoch += 1;
        self.measure(elapsed);
        self.share();
        self.balance(elapsed);
        self.hand_out(elapsed);
        if now >= self.window {
            self.window = now + SHARES_WITHIN.0;
            self.judge();
        }
    }

    /// How exactly the threads share.
    #[must_use]
    pub fn exactness(&self) -> Exactness {
        self.exactness
    }

    /// A window is over: its worst share.
    fn judge(&mut self) {
        let least = Elapsed::new(SHARES_WITHIN.0).bytes_of(self.program.link.get() / LEAST_PART);
        let mut worst = 0;
        for &id in &self.active {
            let track = core::mem::replace(&mut self.members[id as usize].track, Track::START);
            worst = worst.max(track.off(least));
        }
        let owed = self.listed.iter().map(|&limit| self.limits[limit as usize].most_owed).max();
        self.exactness = Exactness { shares: worst, excess: Bytes::new(owed.unwrap_or(0)) };
    }

    /// A thread's lease.
    #[must_use]
    pub fn lease(&self, thread: usize) -> Lease<'_> {
        self.parts.lease(thread)
    }

    /// Bits per second that the policy gives a member now.
    #[must_use]
    pub fn rate(&self, member: MemberId) -> u64 {
        self.members.get(member.0 as usize).map_or(0, |member| member.rate)
    }

    /// What each active member could use.
    fn measure(&mut self, elapsed: Elapsed) {
        let link = self.program.link.get();
        let mut at = 0;
        while let Some(&id) = self.active.get(at) {
            let member = &mut self.members[id as usize];
            self.demands[id as usize].measure(member, elapsed, link);
            if member.need == 0 {
                (member.is_active, member.rate, member.balance) = (false, 0, 0);
                self.active.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// The rate of each active member: the least of what the link and its limits give it.
    fn share(&mut self) {
        if self.list_members() {
            for _ in 0..ROUNDS {
                if !self.answer() {
                    break;
                }
            }
        }
        self.fill_link();
        let limits = self.tree.nodes as u32;
        for &id in &self.active {
            let member = &mut self.members[id as usize];
            member.rate = self.fill.found(member.leaf);
            (member.share, member.owes) = (member.rate, 0);
            let behind = if member.is_behind { &self.held[id as usize].behind[..] } else { &[] };
            let least = behind.iter().min_by_key(|behind| behind.offer);
            let limit =
                least.filter(|least| !is_less(member.rate, least.offer)).map(|least| limits + least.limit);
            member.held_by = match limit {
                _ if !is_less(member.rate, member.need) => UNHELD,
                Some(limit) => limit,
                None => self.fill.held_by(member.leaf),
            };
            if member.held_by != UNHELD {
                self.sums[member.held_by as usize].add(self.epoch, member.served, member.rate);
            }
        }
    }

    /// Lists the active members behind each limit. Answers whether one of these is by match.
    fn list_members(&mut self) -> bool {
        if self.listed.is_empty() {
            return false;
        }
        for &limit in &self.listed {
            self.limits[limit as usize].members.clear();
        }
        let mut limited = false;
        for &id in &self.active {
            limited |= self.members[id as usize].is_behind;
            for limit in &self.held[id as usize].all {
                let limit = &mut self.limits[limit.0 as usize];
                if limit.is_listed {
                    limit.members.push(id);
                }
            }
        }
        limited
    }

    /// The link and the limits by match answer each other once. Answers whether that has changed anything.
    fn answer(&mut self) -> bool {
        self.fill_link();
        let mut has_changed = false;
        for &id in self.active.iter().filter(|&&id| self.members[id as usize].is_behind) {
            let offer = self.fill.potential(self.members[id as usize].leaf);
            has_changed |= core::mem::replace(&mut self.held[id as usize].offer, offer) != offer;
        }
        for at in 0..self.listed.len() {
            has_changed |= self.fill_limit(self.listed[at]);
        }
        has_changed
    }

    /// Members that share a bottleneck make up for what some of them got too much.
    fn balance(&mut self, elapsed: Elapsed) {
        for &id in &self.active {
            let member = &mut self.members[id as usize];
            if member.held_by == UNHELD {
                (member.balance, member.track) = (0, Track::Lost);
                continue;
            }
            let sums = &mut self.sums[member.held_by as usize];
            let lease = elapsed.bytes_of(member.rate);
            let due = sums.due(member.rate);
            member.track.add(member.served, due);
            member.balance = sums.balance(member.balance, member.served, due, lease);
        }
        let limits = self.tree.nodes as u32;
        for &id in &self.active {
            let member = &mut self.members[id as usize];
            if member.held_by == UNHELD {
                continue;
            }
            let back = if member.held_by >= limits { BACK_BEHIND_LIMIT } else { BACK };
            member.balance = self.sums[member.held_by as usize].even_out(member.balance, member.rate);
            let change = elapsed.rate_of(member.balance.unsigned_abs() / back);
            if member.balance >= 0 {
                member.rate += change.min(member.rate / 2);
                continue;
            }
            // What a minimum gives it cannot be taken back: to count on it would only make its thread's part too small.
            let promised = if member.held_by < limits { self.fill.promised(member.leaf) } else { 0 };
            let gives = change.min(member.rate - promised.max(member.rate / LEAST_LEFT));
            member.rate -= gives;
            member.owes = if member.held_by == ROOT { change - gives } else { 0 };
        }
    }

    fn fill_link(&mut self) {
        let (members, held) = (&self.members, &self.held);
        let leaves = self.active.iter().map(|&id| {
            let member = &members[id as usize];
            let behind = if member.is_behind { &held[id as usize].behind[..] } else { &[] };
            (member.leaf, behind.iter().fold(member.need, |need, behind| need.min(behind.offer)))
        });
        self.fill.run(&self.tree, Source::Link, self.program.link.get(), leaves);
    }

    /// What a limit by match would give its members. Answers whether that is new.
    fn fill_limit(&mut self, limit: u32) -> bool {
        let Limit { rate, members: behind, by_match, .. } = &self.limits[limit as usize];
        if behind.is_empty() || !by_match {
            return false;
        }
        let (members, held) = (&self.members, &self.held);
        let leaves = behind.iter().map(|&id| {
            let (member, held) = (&members[id as usize], &held[id as usize]);
            let others = held.behind.iter().filter(|other| other.limit != limit).map(|other| other.offer);
            (member.leaf, others.fold(member.need.min(held.offer), u64::min))
        });
        self.across.run(&self.tree, Source::Limit, *rate, leaves);
        let mut has_changed = false;
        for &id in behind {
            let offer = self.across.potential(self.members[id as usize].leaf);
            for behind in self.held[id as usize].behind.iter_mut().filter(|behind| behind.limit == limit) {
                has_changed |= core::mem::replace(&mut behind.offer, offer) != offer;
            }
        }
        has_changed
    }

    /// Turns rates into leases.
    fn hand_out(&mut self, elapsed: Elapsed) {
        self.parts.begin();
        self.divide_link();
        for &id in &self.active {
            let Member { class, thread, rate, held_by, .. } = self.members[id as usize];
            self.parts.add(&self.tree, class, thread, rate, held_by != UNHELD);
        }
        self.parts.lease_nodes(&self.program, None);
        for at in 0..self.listed.len() {
            self.lease_limit(LimitId(self.listed[at]), elapsed);
        }
    }

    /// Each thread's part of the link: the sum of its members' rates. Members that send all that they have get room to grow; those
    /// that the link holds back give way for it, by a quarter at most.
    fn divide_link(&mut self) {
        let link = self.program.link.get();
        let (mut used, mut by_link, mut starved) = (0, 0, 0_u64);
        for &id in &self.active {
            let member = &self.members[id as usize];
            used += member.rate;
            by_link += if member.held_by == ROOT { member.rate } else { 0 };
            starved |= u64::from(member.held_by == ROOT && member.rate == 0) << (member.thread % 64);
        }
        self.add_rooms(starved);
        let active = || self.active.iter().map(|&id| &self.members[id as usize]);
        let room: u64 = active().map(|member| self.room_of(member, starved)).sum();
        let short = (used + room).saturating_sub(link).min(by_link / 4);
        let granted = (link + short).saturating_sub(used).min(room);
        // Balances do not quite add up to zero.
        let left = link.saturating_sub(used + granted);
        let (short, left) = (Factor::new(short, by_link), Factor::new(left, by_link));
        let granted = Factor::new(granted, room);
        for member in active() {
            let gives = if member.held_by == ROOT { short.of(member.rate) } else { 0 };
            let gets = if member.held_by == ROOT { left.of(member.rate) } else { 0 };
            let grows = granted.of(self.room_of(member, starved));
            self.parts.add_link(member.thread, member.rate - gives + gets + grows);
        }
        self.parts.divide_link(link);
    }

    /// Adds up each thread's room to grow. What members on the thread have taken of it beyond their shares, and cannot give back out of
    /// their rates, it does not get again.
    fn add_rooms(&mut self, starved: u64) {
        let nodes = self.tree.nodes as u32;
        self.rooms.fill(Room::default());
        for &id in &self.active {
            let member = &self.members[id as usize];
            let room = &mut self.rooms[member.thread as usize];
            (room.wanted, room.owed) = (room.wanted + member.grows(nodes, starved), room.owed + member.owes);
        }
        for room in &mut self.rooms {
            room.taken = Factor::new(room.owed.min(room.wanted), room.wanted);
        }
    }

    /// A member's room to grow.
    fn room_of(&self, member: &Member, starved: u64) -> u64 {
        let wanted = member.grows(self.tree.nodes as u32, starved);
        wanted - self.rooms[member.thread as usize].taken.of(wanted)
    }

    /// Each thread's part of a limit that has members on several threads.
    fn lease_limit(&mut self, id: LimitId, elapsed: Elapsed) {
        let limit = &mut self.limits[id.0 as usize];
        let served = limit.members.iter().map(|&id| self.members[id as usize].served).sum();
        limit.pass(served, elapsed);
        if !self.parts.spans_limit(id) {
            return;
        }
        let here = match self.program.limit(id).scope {
            Scope::Subtree(node) => node.0,
            _ => self.tree.nodes as u32 + id.0,
        };
        self.passing.fill(0);
        for &member in &limit.members {
            let Member { class, thread, rate, share, held_by, .. } = self.members[member as usize];
            self.passing[thread as usize] += if held_by == here { rate } else { share };
            if limit.by_match {
                self.parts.add(&self.tree, class, thread, rate, held_by != UNHELD);
            }
        }
        let credit = limit.credit.max(0).unsigned_abs();
        self.parts.lease_limit(id, limit.lends(elapsed), limit.burst, credit, &self.passing);
        if limit.by_match {
            self.parts.lease_nodes(&self.program, Some(id));
        }
    }
}
