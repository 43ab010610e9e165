//! Other hosts: tenants' frames to and from them, in the overlay.
//!
//! Why: a tenant's neighbour may live on another host, and the fabric between knows nothing of tenants.
//! From: RFC 7348 and 8926 by `wire::overlay`; hosts of addresses by `control::directory`; `docs/overlay.md`.
//! Not here: the order of frames (`nic`), queues on the way in (`inward`), headers (`wire`).
//! Invariant: with an overlay nothing leaves the uplink but the overlay's packets and questions for next hops, and nothing
//! comes in from it but frames of the tenants' network whose sender is at the host that sent them; any other frame is
//! counted by its reason.

mod asked;
mod joined;
mod known;
mod map;
mod neighbours;
mod sealed;
mod status;
mod steer;
mod together;
mod wrap;

use core::num::NonZeroU32;
use std::net::IpAddr;

use plimsoll_control::backpressure::{FlowSource, MeterSettings, Meters, SenderMac, Verdict};
use plimsoll_control::{FleetKeys, HostId};
use plimsoll_policy::{LimitId, Program, TenantId};
use plimsoll_ports::{Port, Received, Sending};
use plimsoll_units::{BitRate, Nanos};
use plimsoll_vnic::Status;
use plimsoll_wire::neighbour::{self, Heard};
use plimsoll_wire::overlay::{Checks, Crossing, Path, Tunnelled, Vni, too_big};
use plimsoll_wire::{Ecn, EncapsulationError, Mac as WireMac, Offload, Parsed, TcpPlace, VnetHeader, parse};

pub(crate) use asked::Asked;
pub use asked::{AskedBy, AskedNow};
pub use map::FleetMap;
pub use status::{FleetNow, HostNow, HostState, PairNow, ReceiverNow};
pub use steer::Sent;
pub(super) use together::cuts_segments;

use super::Dataplane;
use super::drops::{Event, Loss, Tally};
use super::flow_cache::Version;
use super::inward::KnownFlows;
use super::lane::Lane;
use super::mac_table::{Mac, Owner, is_group};
use super::pool::Buffer;
use super::posted::Origin;
use neighbours::Neighbours;
use sealed::Seals;
use steer::Steering;

/// The parts that an engine of a fleet is made from.
#[derive(Debug)]
pub struct FleetSetup {
    /// The fleet.
    pub map: FleetMap,
    /// This host's hardware address on the uplink.
    pub mac: Mac,
    /// The fleet's keys, where frames or feedback are sealed.
    pub keys: Option<FleetKeys>,
    /// A number greater than any that this host has sealed a message with: the time in nanoseconds.
    pub sequence: u64,
    /// A random number, drawn at each start.
    pub start: u64,
}

/// The engine's part of the fleet.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) map: FleetMap,
    mac: Mac,
    /// The fleet's keys, where frames or feedback are sealed.
    keys: Option<FleetKeys>,
    neighbours: Neighbours,
    /// Links, by the map's hosts.
    links: Vec<Link>,
    steering: Option<Box<Steering>>,
    /// The keys and sessions, where frames between hosts are sealed.
    seals: Option<Box<Seals>>,
    /// Flows that other hosts asked to hold to a rate.
    asked: Meters<Asked>,
    /// When meters whose lifetime is over are forgotten next.
    forget_at: Nanos,
    /// Messages for control channels that have not been taken yet.
    outbox: Vec<Sent>,
    /// When the last turn ended.
    pub(super) turned: Nanos,
    /// Segments from other hosts that are joined for a tenant.
    joining: joined::Joining,
    /// Headers of packets that came lately.
    known: known::KnownHeaders,
}

/// One host, as frames reach it.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// Its next hop's place among the neighbours.
    hop: usize,
    /// Frames to it, and from it.
    sent: u64,
    received: u64,
    /// Progress of the frame that is being sent to all hosts.
    copy: wrap::Copied,
}

/// The destination of a packet from the uplink.
pub(super) enum Came {
    /// A station: a tenant's, or the common one. With the host in whose name the frame came, if that is not proven.
    For(u32, Option<usize>),
    /// None: the packet has been handled, or counted.
    Done,
}

/// What the headers of a packet from another host decide.
#[derive(Clone, Copy, Debug)]
struct Sorted {
    station: u32,
    /// The tenant elsewhere, where its packets are counted.
    vm: Option<u32>,
    marked: bool,
    host: usize,
    unproven: bool,
}

impl Fleet {
    pub(crate) fn new(setup: FleetSetup, lanes: &[Option<Box<Lane>>], policy: &Program) -> Self {
        let FleetSetup { map, mac, keys, sequence, start } = setup;
        let seals = Seals::new(&map, keys.as_ref(), [sequence, start]);
        let steered = keys.as_ref().filter(|_| map.is_controlled());
        let steering = steered.map(|keys| Box::new(Steering::new(&map, keys, [sequence, start])));
        let mut fleet = Self {
            map,
            mac,
            keys,
            neighbours: Neighbours::default(),
            links: Vec::new(),
            steering,
            seals,
            asked: Meters::new(MeterSettings { seed: start, ..MeterSettings::default() }),
            forget_at: Nanos::ZERO,
            outbox: Vec::new(),
            turned: Nanos::ZERO,
            joining: joined::Joining::default(),
            known: known::KnownHeaders::default(),
        };
        fleet.set_links(&[], Nanos::ZERO);
        fleet.set_receivers(lanes, policy, Nanos::ZERO);
        fleet
    }

    /// Installs another map, and other keys; what is known of a host stays with its name. Answers the old map.
    pub(crate) fn install(&mut self, map: FleetMap, keys: Option<FleetKeys>, now: Nanos) -> FleetMap {
        let old = core::mem::replace(&mut self.map, map);
        // Packets that wait bear their numbers, and name hosts by their place in the map.
        self.known.forget();
        let links: Vec<(HostId, Link)> =
            old.hosts.iter().map(|host| host.number).zip(self.links.iter().copied()).collect();
        self.set_links(&links, now);
        if let Some(steering) = &mut self.steering {
            steering.remap(&self.map);
        }
        if let Some(seals) = &mut self.seals {
            seals.remap(&old, &self.map, now);
        }
        self.rekey(keys, now);
        old
    }

    /// Seals with another key, and accepts others, if these are not the ones in use.
    fn rekey(&mut self, keys: Option<FleetKeys>, now: Nanos) {
        let Some(keys) = keys.filter(|keys| self.keys.as_ref() != Some(keys)) else { return };
        self.steering.iter_mut().for_each(|steering| steering.agent.set_keys(&keys));
        self.seals.iter_mut().for_each(|seals| seals.rekey(&keys, now));
        self.keys = Some(keys);
    }

    fn set_links(&mut self, before: &[(HostId, Link)], now: Nanos) {
        let hops = self.map.hosts.iter().map(|host| (host.hop, host.mac));
        self.neighbours = Neighbours::new(hops, &self.neighbours, now);
        let link = |host: &map::Host| {
            let known = before.iter().find(|(number, _)| *number == host.number);
            let hop = self.neighbours.place(host.hop).unwrap_or(usize::MAX);
            Link { hop, ..known.map(|(_, link)| *link).unwrap_or_default() }
        };
        self.links = self.map.hosts.iter().map(link).collect();
    }

    /// Whether the rate that the receiver's host has asked for allows these bytes now; if so they are charged.
    #[inline]
    pub(crate) fn conforms(&mut self, flow: &Asked, bytes: u32, now: Nanos) -> bool {
        self.asked.judge(flow, bytes, now) == Verdict::Conforming
    }

    /// Whether other hosts ask for rates of flows of tenants here.
    #[inline]
    pub(crate) fn holds_flows(&self) -> bool {
        !self.asked.is_empty()
    }

    /// The rate that another host asked for.
    pub(crate) fn rate(&self, flow: &Asked) -> Option<BitRate> {
        self.asked.rate(flow)
    }

    /// This host's address on the uplink.
    pub(crate) fn mac(&self) -> Mac {
        self.mac
    }

    /// Takes the address of the uplink's first port, which may have been opened later than the standby, or have been made anew with
    /// another one: the kernel uses the address there. Hosts on the link learn it. Answers whether it is another one.
    pub(super) fn take_mac(&mut self, port: &Port, now: Nanos) -> bool {
        let Some(mac) = own_mac(port).filter(|&mac| mac != self.mac) else { return false };
        self.mac = mac;
        self.neighbours.ask_all(now);
        true
    }

    /// When that rate will allow these bytes.
    pub(crate) fn ready_at(&self, flow: &Asked, bytes: u32, now: Nanos) -> Option<Nanos> {
        Some(self.asked.ready_at(flow, bytes, now))
    }

    /// Where flows of a network come from that are sent from this address at another host.
    pub(super) fn source_of(&self, network: Vni, mac: Mac) -> FlowSource {
        match self.map.host_of(network, mac) {
            Some(host) => self.source_at(host, mac),
            None => FlowSource::Elsewhere(SenderMac::default()),
        }
    }

    /// Where flows come from that are sent from this address by the host with that address on the underlay.
    fn source_by(&self, host: IpAddr, mac: Mac) -> FlowSource {
        match self.map.host_at(host) {
            Some(host) => self.source_at(host, mac),
            None => FlowSource::Elsewhere(SenderMac::default()),
        }
    }

    /// Where flows come from that are sent from this address at the host in this place, which has it by the map.
    fn source_at(&self, host: usize, mac: Mac) -> FlowSource {
        match self.steering.is_some() {
            true => FlowSource::Host(self.map.hosts[host].number, SenderMac(mac)),
            false => FlowSource::Elsewhere(SenderMac(mac)),
        }
    }

    fn own(&self) -> IpAddr {
        self.map.overlay.own().address
    }

    /// Whether a frame from the uplink is neither for this host's overlay nor of address resolution.
    pub(super) fn is_foreign(&self, frame: &[u8]) -> bool {
        parse(frame).is_ok_and(|outer| match Tunnelled::read_at(frame, &outer, &self.map.ports) {
            Ok(Some(tunnelled)) if tunnelled.dst == self.own() => false,
            Ok(_) => neighbour::hear(frame, &outer).is_none(),
            Err(_) => false,
        })
    }

    /// Reads a packet for the overlay once more, when its turn has come.
    fn read(&self, packet: &[u8]) -> Option<Tunnelled> {
        let outer = parse(packet).ok()?;
        Tunnelled::read_at(packet, &outer, &self.map.ports).ok()?
    }

    /// The way to a host, once its next hop has answered.
    fn path(&self, host: usize) -> Option<Path> {
        let mac = self.neighbours.mac(self.links[host].hop)?;
        Some(self.map.path(host, self.mac, mac))
    }

    /// Sorts a packet whose headers are known, as [`Dataplane::sort`] did the first of them. With the number that it is to bear.
    #[inline]
    pub(super) fn sort_known(
        &mut self,
        packet: &[u8],
        version: Version,
        tally: &mut Tally,
        now: Nanos,
    ) -> Option<(Came, Option<NonZeroU32>)> {
        let &known::Entry { sorted, number, .. } = self.known.find(packet, version)?;
        self.links[sorted.host].received += 1;
        Some((self.count_sorted(&sorted, packet.len(), tally, now), Some(number)))
    }

    /// Counts a packet that is sorted, and says whether it may come in.
    #[inline]
    fn count_sorted(&mut self, sorted: &Sorted, len: usize, tally: &mut Tally, now: Nanos) -> Came {
        let &Sorted { station, vm, marked, host, unproven } = sorted;
        if let (Some(steering), Some(vm)) = (&mut self.steering, vm)
            && !steering.admits(station, vm, len, marked, now)
        {
            tally.lost(Loss::StrangerOverLimit);
            return Came::Done;
        }
        Came::For(station, unproven.then_some(host))
    }

    fn checks(&self, vnet: Option<VnetHeader>) -> Checks {
        // A packet that a kernel of the same machine hands over has an unfinished checksum, and was never on a wire.
        let fine = |vnet: VnetHeader| vnet.flags & (VnetHeader::NEEDS_CSUM | VnetHeader::DATA_VALID) != 0;
        Checks {
            verified: vnet.is_some_and(fine),
            v6_without: !self.map.overlay.v6_checksum,
            heeded: self.map.heeds_marks(),
        }
    }
}

impl Dataplane {
    /// Whether frames to other hosts are held to those hosts' limits.
    #[inline]
    pub(super) fn is_steered(&self) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| fleet.steering.is_some())
    }

    /// Handles what is due between hosts: questions for next hops, epochs, feedback in frames of its own. Answers when
    /// more is due.
    pub(super) fn tend_fleet(&mut self, now: Nanos) -> Option<Nanos> {
        // Taken out meanwhile, so that it can be asked while ports are written.
        let mut fleet = self.fleet.take()?;
        let mut frame = [0; neighbour::LONGEST];
        while let Some(of) = fleet.neighbours.ask(now) {
            let me = (fleet.own(), WireMac(fleet.mac));
            if let Some(len) = neighbour::ask(me, of, &mut frame) {
                self.send_own(&frame[..len]);
            }
        }
        let next = self.steer(&mut fleet, now);
        let hellos = self.say_hellos(&mut fleet, now);
        let asks = fleet.neighbours.next();
        self.fleet = Some(fleet);
        [next, hellos, asks].into_iter().flatten().min()
    }

    /// Whether there are messages for control channels.
    #[must_use]
    pub fn has_feedback(&self) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| !fleet.outbox.is_empty())
    }

    /// Takes the messages for control channels, each with its destination.
    pub fn take_feedback(&mut self) -> Vec<Sent> {
        self.fleet.as_mut().map_or_else(Vec::new, |fleet| core::mem::take(&mut fleet.outbox))
    }

    /// Sends a frame of this host's own, if the uplink has room; answers whether it left.
    pub(super) fn send_own(&mut self, frame: &[u8]) -> bool {
        let Some(port) = &mut self.uplink.port else { return false };
        let sent = matches!(port.send(frame, None), Ok(Sending::Sent));
        // If the port loses it, that is no tenant's loss.
        self.uplink.senders.note(port.taken(), u32::MAX);
        sent
    }

    /// Finds the station of a packet from the uplink, and handles packets for this host itself. The number is what later packets with
    /// the same headers bear.
    pub(super) fn sort(&mut self, packet: &mut [u8], now: Nanos) -> (Came, Option<NonZeroU32>) {
        let Some(mut fleet) = self.fleet.take() else { return (Came::Done, None) };
        fleet.joining.sorted = None;
        let came = self.sort_for(&mut fleet, packet, now);
        let noted = fleet.joining.sorted.take();
        let noted = noted.filter(|_| self.inward.knows() && matches!(came, Came::For(..)));
        let version = self.known_at();
        let number =
            noted.and_then(|(sorted, tunnelled)| fleet.known.note(packet, version, sorted, tunnelled));
        self.fleet = Some(fleet);
        (came, number)
    }

    fn sort_for(&mut self, fleet: &mut Fleet, packet: &mut [u8], now: Nanos) -> Came {
        let outer = match parse(packet) {
            Ok(outer) => outer,
            Err(why) => {
                self.uplink.tally.bad_frame(why, 1);
                return Came::Done;
            }
        };
        let tunnelled = match Tunnelled::read_at(packet, &outer, &fleet.map.ports) {
            Ok(Some(tunnelled)) if tunnelled.dst == fleet.own() => tunnelled,
            Ok(_) => {
                self.hear_neighbour(fleet, packet, &outer, now);
                return Came::Done;
            }
            // A frame for another host is ignored.
            Err(why) => {
                if outer.addresses().is_some_and(|(_, to)| to == fleet.own()) {
                    self.uplink.tally.not_unwrapped(why);
                }
                return Came::Done;
            }
        };
        let Some(host) = fleet.map.host_at(tunnelled.src) else {
            self.uplink.tally.lost(Loss::UnknownHost);
            return Came::Done;
        };
        if let Some(place) = tunnelled.hello() {
            self.hear_hello(fleet, host, &packet[place], now);
            return Came::Done;
        }
        if let Err(why) = fleet.admit(host, &tunnelled, packet, now) {
            self.uplink.tally.lost(why);
            return Came::Done;
        }
        fleet.links[host].received += 1;
        if let Some(place) = tunnelled.feedback() {
            self.hear_feedback(fleet, &packet[place], now);
        }
        let Some(place) = tunnelled.frame() else { return Came::Done };
        let network = tunnelled.vni;
        if !fleet.map.has_network(network) {
            self.uplink.tally.lost(Loss::UnknownNetwork);
            return Came::Done;
        }
        let Some((to, from)) = addresses(&packet[place]) else { return Came::Done };
        if fleet.map.host_of(network, from) != Some(host) {
            self.uplink.tally.lost(Loss::WrongHost);
            return Came::Done;
        }
        let sorted = Sorted {
            station: self.station_for(network, to),
            vm: fleet.map.vm(network, from).filter(|_| fleet.steering.is_some()),
            marked: fleet.map.heeds_marks() && tunnelled.ecn == Ecn::Ce,
            host,
            unproven: tunnelled.sealed().is_none() && fleet.map.hosts.len() > 1,
        };
        let came = fleet.count_sorted(&sorted, packet.len(), &mut self.uplink.tally, now);
        fleet.joining.sorted = Some((sorted, tunnelled));
        came
    }

    fn hear_neighbour(&mut self, fleet: &mut Fleet, frame: &[u8], parsed: &Parsed, now: Nanos) {
        match neighbour::hear(frame, parsed) {
            Some(Heard::Asks { of, by: (address, mac) }) => {
                fleet.neighbours.hear(address, mac.0, now);
                let mut answer = [0; neighbour::LONGEST];
                let me = (fleet.own(), WireMac(fleet.mac));
                if of == me.0
                    && let Some(len) = neighbour::tell(me, (address, mac), &mut answer)
                {
                    self.send_own(&answer[..len]);
                }
            }
            Some(Heard::Tells { of, mac }) => fleet.neighbours.hear(of, mac.0, now),
            // Other programs of this machine may use the same port.
            None => self.uplink.tally.event(Event::NotOverlay),
        }
    }

    /// Delivers the frame in a packet whose turn has come; `number` is that of its headers, or of the datagram that it is a piece of.
    pub(super) fn unwrap(
        &mut self,
        packet: &mut [u8],
        received: &Received,
        (flows, number): (Option<&mut KnownFlows>, Option<NonZeroU32>),
        lane: Option<u32>,
        now: Nanos,
    ) {
        let Some(fleet) = &mut self.fleet else { return };
        let checks = fleet.checks(received.vnet);
        let (crossing, place, from) = if let Some(known) = fleet.known.of_number(number) {
            self.inward.network = known.tunnelled.vni;
            let (crossing, place) = (known.tunnelled.deliver(packet, checks), known.tunnelled.frame());
            let sender = place.as_ref().and_then(|place| addresses(&packet[place.clone()]));
            (crossing, place, sender.map(|(_, sender)| fleet.source_at(known.sorted.host, sender)))
        } else {
            // Its headers may have given way to others; those of a datagram hold for pieces of any length.
            let datagram = number.filter(|number| number.get() < known::KNOWN);
            let known = fleet.joining.known(datagram, packet.len());
            let is_known = known.is_some();
            let Some(tunnelled) = known.or_else(|| fleet.read(packet)) else { return };
            self.inward.network = tunnelled.vni;
            let (crossing, place) = (tunnelled.deliver(packet, checks), tunnelled.frame());
            let sender = place.as_ref().and_then(|place| addresses(&packet[place.clone()]));
            let from = fleet.joining.from.filter(|_| is_known);
            let from =
                sender.map(|(_, sender)| from.unwrap_or_else(|| fleet.source_by(tunnelled.src, sender)));
            if let (false, Ok(_), Some(from)) = (is_known, &crossing, from) {
                fleet.joining.know(datagram, tunnelled, from);
            }
            (crossing, place, from)
        };
        let crossing = match crossing {
            Ok(crossing) => crossing,
            Err(why) => return self.uplink.tally.not_unwrapped(why),
        };
        // Where hosts react to the fabric's marks, no packet enters it with one.
        let heeds = fleet.map.heeds_marks();
        if crossing.marked_by_fabric() || heeds && crossing.outer == Ecn::Ce {
            self.uplink.tally.event(Event::FabricMarked);
        }
        if crossing.marked_before() {
            self.uplink.tally.event(Event::InnerMarked);
        }
        if crossing.alarm.is_some() {
            self.uplink.tally.event(Event::StrangeMark);
        }
        let (Some(place), Some(from)) = (place, from) else { return };
        let heeded = heeds && crossing.marked_by_fabric();
        if heeded && self.is_mediated(lane) {
            without_fabrics_mark(&mut packet[place.clone()], crossing);
        }
        let frame = Received { len: place.len(), vnet: None, at: received.at, waited: received.waited };
        self.deliver_or_join(&mut packet[place], &frame, flows, (lane, from), now);
    }

    /// The network of the tenant in a lane, or of the frame that is delivered if it has none.
    #[inline]
    pub(super) fn network_of(&self, lane: Option<u32>) -> Vni {
        let lane = lane.and_then(|lane| self.tenants.lanes.get(lane as usize)?.as_ref());
        lane.map_or(self.inward.network, |lane| lane.network)
    }

    fn is_mediated(&self, lane: Option<u32>) -> bool {
        let lane = lane.and_then(|lane| self.tenants.lanes.get(lane as usize)?.as_ref());
        lane.is_some_and(|lane| lane.guest.is_some())
    }

    /// The tenant elsewhere that a frame of the tenant in this lane goes to, if limits hold frames to it.
    #[inline]
    pub(super) fn peer_of(&self, index: usize, to: Mac) -> Option<u32> {
        let fleet = self.fleet.as_ref().filter(|fleet| fleet.map.is_controlled())?;
        fleet.map.vm(self.tenants.lanes.get(index)?.as_ref()?.network, to)
    }

    /// Whether a tenant's frame may go on, in a fleet: it has an address of its own, and no packet is longer than the
    /// overlay carries. Otherwise it is counted, and its buffer is freed.
    #[expect(clippy::too_many_arguments, reason = "what is known of a frame while it is admitted")]
    pub(super) fn may_leave(
        &mut self,
        index: usize,
        buffer: Buffer,
        parsed: &Parsed,
        offload: &Offload,
        origin: &Origin,
        len: usize,
        now: Nanos,
    ) -> bool {
        let Some(fleet) = &self.fleet else { return true };
        let Some(lane) = &mut self.tenants.lanes[index] else { return false };
        let stays = matches!(self.macs.owner(lane.network, parsed.dst_mac.0), Some(Owner::Lane(_)));
        let longest = match usize::from(offload.segment) {
            0 => len,
            segment => len.min(usize::from(offload.header) + segment),
        };
        let mtu = fleet.map.inner_mtu();
        // Other hosts accept no frames from an address that the map lacks; a broadcast is not copied to them later.
        let goes_out = !stays && !is_group(parsed.dst_mac.0);
        let home = fleet.map.home_of(lane.network, parsed.src_mac.0);
        if home.map_or(goes_out, |home| home != fleet.map.members.own()) {
            lane.tally.lost_many(Loss::ForeignSource, origin.frames().into());
        } else if stays || longest <= usize::from(mtu) + ETHERNET {
            return true;
        } else {
            lane.tally.not_wrapped(EncapsulationError::TooLong, origin.frames().into());
            lane.tell_too_big(buffer, len, mtu, &mut self.buffers.scratch, now);
        }
        lane.give(buffer, origin, Status::Dropped);
        false
    }
}

impl Lane {
    /// Tells the tenant the longest packet that it may send, no more often than allowed.
    fn tell_too_big(&mut self, buffer: Buffer, len: usize, mtu: u16, scratch: &mut [u8], now: Nanos) {
        if !self.may_tell(now) {
            return;
        }
        match too_big(&self.pool.bytes(buffer)[..len], mtu, scratch) {
            Ok(len) => {
                let sent = self.port.as_mut().map(|port| port.send(&scratch[..len], None));
                if matches!(sent, Some(Ok(Sending::Sent))) {
                    self.wrote = true;
                    self.tally.event(Event::TooBigTold);
                }
            }
            Err(why) => self.tally.untold(why),
        }
    }
}

/// The limits of a tenant here for a tenant elsewhere.
pub(super) fn pair_of(
    fleet: &Option<Box<Fleet>>,
    tenant: Option<TenantId>,
    peer: Option<u32>,
) -> impl Iterator<Item = LimitId> + use<> {
    let pair = fleet.as_ref().and_then(|fleet| fleet.map.pair(tenant?, peer?));
    pair.into_iter().flatten()
}

/// Takes the fabric's mark from a TCP frame for a tenant whose connections are mediated. Its echo would have the sender's host
/// install a meter, as if backpressure had marked the frame; this host holds the sender back for the fabric already.
fn without_fabrics_mark(frame: &mut [u8], crossing: Crossing) {
    if parse(frame).is_ok_and(|parsed| TcpPlace::of(&parsed).is_some()) {
        let _ = crossing.inner.write(frame);
    }
}

/// Destination and source of an Ethernet frame.
fn addresses(frame: &[u8]) -> Option<(Mac, Mac)> {
    Some((*frame.first_chunk()?, *frame.get(6..)?.first_chunk()?))
}

/// This host's address on an uplink: the device's own, or a fixed one.
#[must_use]
pub fn own_mac(port: &Port) -> Option<Mac> {
    match port {
        Port::AfPacket(port) => Some(port.mac()),
        Port::AfXdp(port) => Some(port.mac()),
        _ => None,
    }
}

const ETHERNET: usize = 14;
