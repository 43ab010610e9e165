//! The uplink's second port, which takes over while the first has no carrier.
//!
//! Why: a cable or a switch may fail; tenants should lose the packets of a moment, and no more.
//! From: Linux's active-backup bonding: one port is active, frames that arrive at the other are dropped, and the first port
//! takes back once it has been well for a while (`updelay`). Tenants keep their addresses, so it is switches alone that must
//! learn something; they learn it from RARP frames, as after QEMU has moved a virtual machine.
//! Not here: whether a port has a carrier (`ports`), opening ports (`control`).
//! Invariant: frames leave by one port at a time, and frames are taken in from that one alone. A frame that the port before
//! had taken and not sent leaves by the next one, or is counted as lost.

pub(super) mod carriers;
mod idle;

use plimsoll_ports::{Counters, DropReason, Port, Sending};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::{Mac as WireMac, neighbour};

use super::drops::Event;
use super::fleet::cuts_segments;
use super::lane::sum;
use super::mac_table::Mac;
use super::setup::pull;
use super::{Dataplane, Uplink, Whose};

/// How often the ports are looked at while nothing else keeps the engine's thread awake. The kernel tells of a lost carrier
/// within a second; this adds little.
const LOOK: Span = Span::millis(50);

/// Between two switches: where both ports flap, switching more often would lose more than waiting does.
const REST: Span = Span::millis(100);

/// When the addresses are announced, after a switch: at once, and twice more, as a frame may be lost or come before the
/// switch's port forwards. QEMU announces five times within a second.
const ROUNDS: [Span; 3] = [Span::ZERO, Span::millis(100), Span::secs(1)];

/// Most announcements of one turn.
const ANNOUNCED: usize = 32;

/// The second port, and which of both is active.
#[derive(Debug)]
pub(crate) struct Standby {
    hold_off: Span,
    /// The place of the port that is [`Uplink::port`].
    active: Place,
    /// The other port; none while it is lost.
    idle: Option<Port>,
    /// Whether frames may wait at the idle port.
    ready: bool,
    /// Since when the idle port has had a carrier without a break.
    well_since: Option<Nanos>,
    /// When the idle port was last asked whether its device is still there.
    probed: Nanos,
    /// Since when the active port has been active.
    since: Nanos,
    switches: u64,
    /// When the last announcements began.
    announced_since: Nanos,
    /// Their rounds so far.
    announced: usize,
    /// Addresses of this round that have not been announced yet.
    addresses: Vec<Mac>,
    /// The ports' carriers as the log has them.
    logged: carriers::Logged,
}

/// One of the uplink's two places for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The policy's `port`.
    First,
    /// The policy's `standby`.
    Second,
}

impl Place {
    const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// The port in this place, as an owner of ports.
    pub(crate) const fn whose(self) -> Whose {
        match self {
            Self::First => Whose::Uplink,
            Self::Second => Whose::Standby,
        }
    }

    /// The place as the policy's key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "port",
            Self::Second => "standby",
        }
    }
}

/// What a reload does to the second port.
#[derive(Debug, Default)]
pub enum StandbyChange {
    /// The policy has none now.
    #[default]
    None,
    /// It stays, with this `hold_off`.
    Keep(Span),
    /// This port is the second one from now on.
    Put(Box<Port>, Span),
}

/// The uplink's two ports.
#[derive(Clone, Debug)]
pub struct StandbyNow {
    /// Which of both is active.
    pub active: Place,
    /// For how long it has been.
    pub active_for: Span,
    /// How often another port became active.
    pub switches: u64,
    /// The policy's `port`, then its `standby`.
    pub ports: [OnePort; 2],
}

/// One of the uplink's two ports.
#[derive(Clone, Debug)]
pub struct OnePort {
    /// The port's name; none while it is lost.
    pub name: Option<String>,
    /// Whether it is there and has a carrier.
    pub up: bool,
}

impl Standby {
    fn new(active: Place, idle: Option<Port>, hold_off: Span, now: Nanos) -> Self {
        Self {
            hold_off,
            active,
            idle,
            ready: true,
            well_since: None,
            probed: now,
            since: now,
            switches: 0,
            announced_since: now,
            announced: ROUNDS.len(),
            addresses: Vec::new(),
            logged: carriers::Logged::default(),
        }
    }

    /// Announces all addresses from now on, in rounds.
    fn begin_announcing(&mut self, now: Nanos) {
        (self.announced_since, self.announced) = (now, 0);
        self.addresses.clear();
    }

    /// Notes the idle port's carrier, and answers whether it is to become active.
    fn is_due(&mut self, away: bool, now: Nanos) -> bool {
        let well = self.idle.as_ref().is_some_and(|port| !port.is_down());
        self.well_since = well.then(|| self.well_since.unwrap_or(now));
        let Some(since) = self.well_since else { return false };
        let rested = self.switches == 0 || now.since(self.since) >= REST;
        let back = self.active == Place::Second && now.since(since) >= self.hold_off;
        rested && (away || back)
    }
}

impl Uplink {
    /// Whether the active port can send nothing: it is lost, has no carrier, or its device refuses the frame that waits.
    fn is_cut(&self) -> bool {
        self.port.as_ref().is_none_or(Port::is_down) || self.down && self.blocked
    }

    /// The owner that the uplink's active port has.
    pub(super) fn active(&self) -> Whose {
        self.standby.as_ref().map_or(Whose::Uplink, |standby| standby.active.whose())
    }

    /// The port that is not active, if there is one.
    pub(super) fn idle(&self) -> Option<&Port> {
        self.standby.as_ref()?.idle.as_ref()
    }

    /// Counters of all ports that the uplink has had.
    pub(super) fn counters(&mut self) -> Counters {
        let idle = self.standby.as_mut().and_then(|standby| standby.idle.as_mut());
        let past = idle.map_or(self.past, |port| sum(&self.past, &port.counters()));
        super::lane::carried(&mut self.port, &past, &self.blamed)
    }

    /// Why the idle port loses frames; reported once.
    pub(super) fn take_idle_problem(&mut self) -> Option<(Whose, plimsoll_ports::PortError)> {
        let standby = self.standby.as_mut()?;
        let problem = standby.idle.as_mut()?.take_problem()?;
        Some((standby.active.other().whose(), problem))
    }

    /// Both ports, if there are two.
    pub(super) fn standby_now(&self, now: Nanos) -> Option<StandbyNow> {
        let standby = self.standby.as_ref()?;
        let one = |port: &Option<Port>, cut: bool| OnePort {
            name: port.as_ref().map(Port::name),
            up: !cut && port.as_ref().is_some_and(|port| !port.is_down()),
        };
        let (active, idle) = (one(&self.port, self.is_cut()), one(&standby.idle, false));
        Some(StandbyNow {
            active: standby.active,
            active_for: now.since(standby.since),
            switches: standby.switches,
            ports: if standby.active == Place::First { [active, idle] } else { [idle, active] },
        })
    }
}

impl Dataplane {
    /// Gives the uplink a second port, or none where it cannot be opened yet. `active` is the place of the port that the
    /// engine was made with.
    pub fn set_standby(&mut self, active: Place, idle: Option<Port>, hold_off: Span, now: Nanos) {
        self.uplink.standby = Some(Box::new(Standby::new(active, idle, hold_off, now)));
        self.set_segments();
    }

    /// Looks at both ports, lets the other one take over where that is due, and drops what the idle one brings; of an only port it logs
    /// the carrier. Answers when it wants to look again.
    pub(super) fn tend_standby(&mut self, now: Nanos) -> Option<Nanos> {
        let cut = self.uplink.is_cut();
        let Some(standby) = &mut self.uplink.standby else { return self.log_carrier(now) };
        if standby.is_due(cut, now) {
            self.switch(now);
        }
        self.probe_idle(now);
        self.log_carriers(now);
        let more = self.drop_idle() | self.announce(now);
        Some(if more { now } else { now + LOOK })
    }

    /// Makes the idle port the active one.
    #[cold]
    fn switch(&mut self, now: Nanos) {
        // What the port has reported is of its own numbers.
        self.blame_senders();
        let Some(standby) = &mut self.uplink.standby else { return };
        core::mem::swap(&mut self.uplink.port, &mut standby.idle);
        standby.active = standby.active.other();
        (standby.since, standby.well_since, standby.ready) = (now, None, true);
        standby.switches += 1;
        standby.begin_announcing(now);
        let name = |port: &Option<Port>| port.as_ref().map_or_else(|| "it".to_owned(), Port::name);
        let to = name(&self.uplink.port);
        let line = match standby.active {
            Place::Second => {
                format!("the uplink's port has no carrier: {to}, its standby, carries all frames now")
            }
            Place::First => format!("the uplink's port {to} carries all frames again"),
        };
        standby.logged.switched(standby.active, now);
        self.tell(line);
        (self.uplink.ready, self.uplink.down) = (true, false);
        self.uplink.tally.event(Event::UplinkSwitched);
        self.carry_over();
    }

    /// Lets the frames that the port before had taken and not sent leave by the active one.
    fn carry_over(&mut self) {
        let uplink = &mut self.uplink;
        let (Some(port), Some(standby)) = (&mut uplink.port, &mut uplink.standby) else { return };
        let staged = standby.idle.as_ref().map_or(0, |before| before.staged());
        let mut lanes = uplink.senders.latest(staged).into_iter();
        // What it could not send before is of numbers that are not known any more; the port has counted it.
        while port.take_refused().is_some() {}
        uplink.senders.follow(port.taken());
        let Some(before) = &mut standby.idle else { return };
        let mut lost = Vec::new();
        before.recall(|frame, vnet| {
            let lane = lanes.next().unwrap_or(u16::MAX);
            match port.send(frame, vnet) {
                Ok(Sending::Sent) => uplink.senders.note(port.taken(), lane.into()),
                Ok(Sending::Refused(why)) => {
                    uplink.blamed[why as usize] += 1;
                    lost.push((lane, why));
                }
                // The port before has not counted it.
                Ok(Sending::Full) | Err(_) => lost.push((lane, DropReason::Gone)),
            }
        });
        for (lane, why) in lost {
            let lane = self.tenants.lanes.get_mut(usize::from(lane)).and_then(Option::as_mut);
            lane.map_or(&mut self.uplink.tally, |lane| &mut lane.tally).undelivered(why);
        }
    }

    /// Notes that both ports may have frames.
    pub(super) fn uplink_ready(&mut self) {
        self.uplink.ready = true;
        self.uplink.standby.iter_mut().for_each(|standby| standby.ready = true);
    }

    /// Announces the addresses behind this host to the switches, in the rounds after a switch; answers whether some of a
    /// round are left.
    fn announce(&mut self, now: Nanos) -> bool {
        let Some(standby) = &mut self.uplink.standby else { return false };
        if standby.addresses.is_empty() {
            let due = ROUNDS
                .get(standby.announced)
                .is_some_and(|&after| now.since(standby.announced_since) >= after);
            if !due {
                return false;
            }
            standby.announced += 1;
            // With an overlay, this host's address alone is seen there.
            standby.addresses = match &self.fleet {
                Some(fleet) => vec![fleet.mac()],
                None => self.macs.of_lanes(),
            };
        }
        let mut frame = [0; neighbour::LONGEST];
        for _ in 0..ANNOUNCED {
            let Some(standby) = &mut self.uplink.standby else { return false };
            let Some(&mac) = standby.addresses.last() else { return false };
            let Some(len) = neighbour::announce(WireMac(mac), &mut frame) else { return false };
            // Where there is no room now, or no port, the next turn or the next round tries again.
            if !self.send_own(&frame[..len]) {
                return false;
            }
            if let Some(standby) = &mut self.uplink.standby {
                standby.addresses.pop();
            }
            self.uplink.tally.event(Event::AddressAnnounced);
        }
        true
    }

    /// Attaches one of the uplink's ports that was lost. Answers the port where that place has one.
    pub(super) fn attach_uplink(&mut self, whose: &Whose, port: Port, now: Nanos) -> Option<Port> {
        let active = *whose == self.uplink.active();
        let place = match &mut self.uplink.standby {
            _ if active => &mut self.uplink.port,
            Some(standby) => &mut standby.idle,
            None => return Some(port),
        };
        if place.is_some() {
            return Some(port);
        }
        let moved =
            *whose == Whose::Uplink && self.fleet.as_mut().is_some_and(|fleet| fleet.take_mac(&port, now));
        *place = Some(port);
        if moved && let Some(standby) = &mut self.uplink.standby {
            standby.begin_announcing(now);
        }
        if active {
            self.uplink.down = false;
        }
        self.uplink_ready();
        self.uplink.tally.event(Event::PortBack);
        self.set_segments();
        None
    }

    /// The places of the uplink that have no port.
    pub(super) fn lacking_uplink(&self) -> impl Iterator<Item = Whose> + use<> {
        let active = self.uplink.port.is_none().then(|| self.uplink.active());
        let standby = self.uplink.standby.as_ref().filter(|standby| standby.idle.is_none());
        active.into_iter().chain(standby.map(|standby| standby.active.other().whose()))
    }

    /// Puts a reload's second port in place; answers the port that is no longer used.
    pub(super) fn change_standby(&mut self, change: StandbyChange, now: Nanos) -> Option<Port> {
        if let StandbyChange::Keep(hold_off) = change {
            self.uplink.standby.iter_mut().for_each(|standby| standby.hold_off = hold_off);
            return None;
        }
        // The second port of the policy before leaves: the first one carries on, also while it has no carrier.
        if self.uplink.standby.as_ref().is_some_and(|standby| standby.active == Place::Second) {
            self.switch(now);
        }
        let mut before = self.uplink.standby.take();
        let closed = before.as_mut().and_then(|standby| standby.idle.take());
        if let StandbyChange::Put(port, hold_off) = change {
            let mut standby = Standby::new(Place::First, Some(*port), hold_off, now);
            (standby.since, standby.switches) =
                before.as_ref().map_or((now, 0), |before| (before.since, before.switches));
            self.uplink.standby = Some(Box::new(standby));
        }
        self.set_segments();
        closed.map(|mut port| {
            // What it has taken leaves by it now, or is counted.
            let _ = port.flush();
            self.uplink.past = sum(&self.uplink.past, &port.counters());
            port
        })
    }

    /// Segments are left to the uplink where each of its ports can cut them.
    pub(super) fn set_segments(&mut self) {
        let mut ports = self.uplink.port.iter().chain(self.uplink.idle()).peekable();
        if ports.peek().is_none() {
            return;
        }
        let wrapped = self.fleet.is_some();
        let whole = ports.all(|port| cuts_segments(port, wrapped));
        if whole != self.uplink.segments {
            self.uplink.segments = whole;
            self.scheduler.nic.set_pull(pull(&self.policy.program, whole));
        }
    }
}
