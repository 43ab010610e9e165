//! The exchange of messages with one other host.
//!
//! Why: limits for all VMs of a host travel together, and a host that hears nothing must be told from one that is idle.
//! From: PicNIC §5.5, PN-S1 and PN-S2: the packets of senders that obey no limit are limited where they arrive.
//! Not here: which limits (`agent`), how messages travel.
//! Invariant: a message that has not left when the next epoch ends is replaced by one with that epoch's limits.

use std::collections::VecDeque;

use plimsoll_units::{Nanos, Span};

use crate::{Allowance, HostId, LONGEST_SILENCE, News, Notice, Sealer, Vnic, refresh};

/// The exchange with one other host.
#[derive(Debug)]
pub struct Contact {
    host: HostId,
    news: News<Vnic>,
    /// To be sealed at this epoch's end.
    allowances: Vec<Allowance>,
    /// Sealed, and still to leave.
    messages: VecDeque<Vec<u8>>,
    told_at: Option<Nanos>,
    heard_at: Option<Nanos>,
    /// When a VM's packet last left for it.
    sent_at: Option<Nanos>,
    /// When a VM's packet last came from it.
    came_at: Option<Nanos>,
    /// Since when packets have come while the host is not heard.
    unheard: Option<Nanos>,
    heard: u64,
    unsent: u64,
}

/// Whether another host is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The host was heard within the lapse.
    Heard,
    /// The host is not heard, though packets go there or come from it.
    Silent,
    /// The host is not heard, and no packets go there or come from it.
    Idle,
}

/// Most limits in a message, so that an underlay with an MTU of 1,280 bytes carries it in a frame of its own.
const IN_MESSAGE: usize = 44;

impl Contact {
    pub(super) fn new(host: HostId) -> Self {
        Self {
            host,
            news: News::default(),
            allowances: Vec::new(),
            messages: VecDeque::new(),
            told_at: None,
            heard_at: None,
            sent_at: None,
            came_at: None,
            unheard: None,
            heard: 0,
            unsent: 0,
        }
    }

    pub(super) fn is_with(&self, host: HostId) -> bool {
        self.host == host
    }

    /// Keeps the contact for another set of receivers: all limits are sent anew.
    pub(super) fn begun_anew(mut self) -> Self {
        self.news.forget();
        self
    }

    pub(super) fn note_heard(&mut self, now: Nanos) {
        (self.heard_at, self.unheard) = (Some(now), None);
        self.heard += 1;
    }

    #[inline]
    pub(super) fn note_sent(&mut self, now: Nanos) {
        self.sent_at = Some(now);
    }

    /// Notes that a VM's packet has come, and says whether its sender is a stranger: packets have come for longer than a host
    /// may be silent, and the host was not heard. A host that was idle has that time to be heard again; after that it is a
    /// stranger until it is heard.
    #[inline]
    pub(super) fn is_strange(&mut self, lapse: Span, now: Nanos) -> bool {
        let patience = patience(lapse);
        self.came_at = Some(now);
        if self.heard_at.is_some_and(|at| now.since(at) <= patience) {
            self.unheard = None;
            return false;
        }
        now.since(*self.unheard.get_or_insert(now)) > patience
    }

    pub(super) fn presence(&self, lapse: Span, now: Nanos) -> Presence {
        let within = |at: Option<Nanos>, span: Span| at.is_some_and(|at| now.since(at) <= span);
        let strange = self.unheard.is_some() && !within(self.unheard, patience(lapse));
        match () {
            () if self.heard_at.is_some_and(|at| now.since(at) < lapse) => Presence::Heard,
            () if strange && within(self.came_at, patience(lapse)) => Presence::Silent,
            () if self.is_sent_to(lapse, now) => Presence::Silent,
            () => Presence::Idle,
        }
    }

    pub(super) fn begin_epoch(&mut self) {
        if !self.messages.is_empty() {
            self.told_at = None;
            self.unsent += self.messages.len() as u64;
            self.messages.clear();
            self.news.forget();
        }
        self.allowances.clear();
    }

    /// Adds a limit to the next message, once for all VMs of this host.
    pub(super) fn tell(&mut self, allowance: Allowance) {
        let mut its = self.allowances.iter().rev().take_while(|known| known.receiver == allowance.receiver);
        if its.all(|known| known.whom != allowance.whom) {
            self.allowances.push(allowance);
        }
    }

    /// Like [`Contact::tell`], if the limit has changed or is to be refreshed.
    pub(super) fn tell_news(&mut self, allowance: Allowance, lapse: Span, now: Nanos) {
        if self.news.is(allowance.receiver, allowance.limits, lapse, now) {
            self.tell(allowance);
        }
    }

    /// Seals the limits for this host. If packets go there and nothing was sent for a while, seals an empty message, or the other
    /// host would take this one for silent.
    pub(super) fn seal(&mut self, sealer: &mut Sealer, lapse: Span, now: Nanos) {
        let quiet = self.told_at.is_none_or(|at| now.since(at) >= refresh(lapse));
        let sign = (self.is_sent_to(lapse, now) && quiet && self.allowances.is_empty()).then_some(&[][..]);
        for part in self.allowances.chunks(IN_MESSAGE).chain(sign) {
            let mut message = Vec::new();
            sealer.seal(self.host, part, &mut message);
            self.messages.push_back(message);
            self.told_at = Some(now);
        }
        self.allowances.clear();
    }

    /// Seals notices. They are as new as the numbers that they get, so they leave after what was sealed before.
    pub(super) fn notify(&mut self, sealer: &mut Sealer, notices: &[Notice]) {
        let mut message = Vec::new();
        sealer.seal_notices(self.host, notices, &mut message);
        self.messages.push_back(message);
    }

    pub(super) fn poll_message(&mut self) -> Option<Vec<u8>> {
        self.messages.pop_front()
    }

    /// Messages that still have to leave, the next one first.
    #[must_use]
    pub fn messages(&self) -> &VecDeque<Vec<u8>> {
        &self.messages
    }

    /// When this host was last heard.
    #[must_use]
    pub fn heard_at(&self) -> Option<Nanos> {
        self.heard_at
    }

    /// Whether a packet of a VM here has left for this host within the `span` before `now`.
    #[must_use]
    pub fn is_sent_to(&self, span: Span, now: Nanos) -> bool {
        self.sent_at.is_some_and(|at| now.since(at) < span)
    }

    /// Messages that were heard from this host.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.heard
    }

    /// Messages that had not left before there were newer ones.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.unsent
    }
}

/// How long a host may be silent before its VMs count as strangers: other hosts may have a longer lapse than this one.
fn patience(lapse: Span) -> Span {
    lapse.max(LONGEST_SILENCE.times(3))
}
