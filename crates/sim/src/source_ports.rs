//! Source ports: no two flows that exist at one time have the same 5-tuple.
//!
//! Why: switches, captures and people tell flows apart by it.
//! From: Linux's range of ephemeral ports, and that `connect` takes the next one that is free.
//! Not here: which port is tried first (`build`).
//! Invariant: a port of a client's address is taken at most once for each address, port and protocol of a server.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use crate::flow::{End, Flow};

/// The first of Linux's ephemeral ports.
const FIRST: u16 = 32_768;

/// The 5-tuples of all flows that exist.
#[derive(Debug, Default)]
pub(crate) struct SourcePorts {
    taken: BTreeSet<([Ipv4Addr; 2], u8, [u16; 2])>,
}

impl SourcePorts {
    /// The number of ephemeral ports.
    pub(crate) const COUNT: u32 = 60_999 - 32_768 + 1;

    /// An ephemeral port.
    pub(crate) fn nth(place: u32) -> u16 {
        FIRST + (place % Self::COUNT) as u16
    }

    /// Takes a client's port for a flow between these ends, or the next one that is free; `None` if all are taken.
    pub(crate) fn take(&mut self, [client, server]: &[End; 2], protocol: u8) -> Option<u16> {
        let addresses = [client.address, server.address];
        let first = u32::from(client.port.saturating_sub(FIRST));
        let mut ports = (0..Self::COUNT).map(|step| Self::nth(first + step));
        ports.find(|&port| self.taken.insert((addresses, protocol, [port, server.port])))
    }

    /// Gives the port of a flow back.
    pub(crate) fn give_back(&mut self, flow: &Flow) {
        let [client, server] = &flow.ends;
        let addresses = [client.address, server.address];
        self.taken.remove(&(addresses, flow.protocol, [client.port, server.port]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(host: u8, port: u16) -> End {
        let address = Ipv4Addr::new(10, 0, 0, host);
        End { node: 0, tenant: None, address, port, dscp: 0, queue: None, core: None }
    }

    #[test]
    fn no_two_flows_that_exist_have_one_tuple() {
        let mut ports = SourcePorts::default();
        let ends = [end(1, 60_998), end(2, 80)];
        let taken: Vec<_> = (0..3).map(|_| ports.take(&ends, 6)).collect();
        assert_eq!(taken, [Some(60_998), Some(60_999), Some(32_768)], "from the last on to the first");
        assert_eq!(ports.take(&ends, 17), Some(60_998), "another protocol");
        assert_eq!(ports.take(&[end(1, 60_998), end(3, 80)], 6), Some(60_998), "another server");
        let others = (1..SourcePorts::COUNT - 2).map(SourcePorts::nth);
        assert!(others.map(|port| ports.take(&[end(1, port), end(2, 80)], 6)).all(|port| port.is_some()));
        assert_eq!(ports.take(&ends, 6), None, "all are taken");
        let flow = Flow { workload: 0, ends, protocol: 6, socket: 0, through: None };
        ports.give_back(&flow);
        assert_eq!(ports.take(&ends, 6), Some(60_998), "given back");
    }
}
