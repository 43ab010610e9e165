//! Log lines about the carriers of the uplink's port, or its two ports.
//!
//! Why: while the idle port is down nothing can take over, and no packet shows it; while both are down, all packets wait.
//! From: `docs/logs.md`, "Ports".
//! Not here: which port is active (`standby`), and devices that have disappeared (`reopen` logs these).
//! Invariant: at most one line a second, and the last line agrees with the ports once they have been steady for a second.

use plimsoll_ports::Port;
use plimsoll_units::{Nanos, Span};

use super::super::{Dataplane, Uplink};
use super::Place;

/// Shortest time between two lines: a link that is being plugged in goes up and down several times.
const BETWEEN: Span = Span::secs(1);

/// What the log says of the carriers.
#[derive(Debug, Default)]
pub(super) struct Logged {
    carriers: Carriers,
    /// When the last line was written.
    at: Option<Nanos>,
}

/// What the log says of the carrier of an uplink with one port.
#[derive(Debug, Default)]
pub(in super::super) struct Alone {
    cut: bool,
    /// When the last line was written.
    at: Option<Nanos>,
}

/// Which of the uplink's two ports have a carrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Carriers {
    #[default]
    Both,
    /// The active port alone.
    Active,
    Neither,
}

impl Logged {
    /// Notes a switch, which has a line of its own: it implies that the first port has no carrier, or has one again.
    pub(super) fn switched(&mut self, active: Place, now: Nanos) {
        self.carriers = if active == Place::First { Carriers::Both } else { Carriers::Active };
        self.at = Some(now);
    }
}

impl Uplink {
    /// Which ports have a carrier; none while only the idle one has, which is active soon.
    fn carriers(&self) -> Option<Carriers> {
        let idle = self.idle().is_some_and(|port| !port.is_down());
        match (!self.is_cut(), idle) {
            (true, true) => Some(Carriers::Both),
            (true, false) => Some(Carriers::Active),
            (false, false) => Some(Carriers::Neither),
            (false, true) => None,
        }
    }
}

impl Dataplane {
    /// Logs a change of the carrier of an uplink with one port. Answers when to look again. A port that has disappeared has a line of
    /// its own.
    pub(super) fn log_carrier(&mut self, now: Nanos) -> Option<Nanos> {
        let port = self.uplink.port.as_ref()?;
        let (cut, alone) = (port.is_down(), &mut self.uplink.alone);
        if cut == alone.cut {
            return None;
        }
        if let Some(next) = alone.at.map(|at| at + BETWEEN).filter(|next| *next > now) {
            return Some(next);
        }
        *alone = Alone { cut, at: Some(now) };
        let says = if cut { "no carrier: packets wait" } else { "a carrier again" };
        let line = format!("the uplink's port {} has {says}", port.name());
        self.tell(line);
        None
    }

    /// Logs a change of the ports' carriers.
    pub(super) fn log_carriers(&mut self, now: Nanos) {
        let found = self.uplink.carriers();
        let Some(standby) = &mut self.uplink.standby else { return };
        let (before, Some(found)) = (standby.logged.carriers, found) else { return };
        if found == before || standby.logged.at.is_some_and(|at| now.since(at) < BETWEEN) {
            return;
        }
        // With both back, a line for each port.
        let found = if before == Carriers::Neither { Carriers::Active } else { found };
        let (active, hold_off) = (standby.active, standby.hold_off);
        let name = |place: Place, port: Option<&Port>| {
            let port = port.map_or_else(String::new, |port| format!(" {}", port.name()));
            format!("the uplink's {}{port}", place.name())
        };
        let (here, there) =
            (name(active, self.uplink.port.as_ref()), name(active.other(), standby.idle.as_ref()));
        let line = match found {
            Carriers::Neither if active == Place::First => Some(neither(&here, &there)),
            Carriers::Neither => Some(neither(&there, &here)),
            Carriers::Active if before == Carriers::Neither => {
                Some(format!("{here} carries all frames again"))
            }
            // Its own line says that it has disappeared.
            Carriers::Active if standby.idle.is_none() => None,
            Carriers::Active => Some(format!("{there} has no carrier: if {here} fails, packets wait")),
            Carriers::Both if active == Place::First => Some(format!("{there} has a carrier again")),
            Carriers::Both => {
                Some(format!("{there} has a carrier again; it takes back once it has had one for {hold_off}"))
            }
        };
        standby.logged.carriers = found;
        if let Some(line) = line {
            standby.logged.at = Some(now);
            self.tell(line);
        }
    }
}

fn neither(first: &str, second: &str) -> String {
    format!("neither {first} nor {second} has a carrier: packets wait")
}
