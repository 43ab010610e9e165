//! The addresses that each tenant's port may send from, and may claim.
//!
//! Why: a tenant that claims a neighbour's address by ARP or neighbour discovery gets the neighbour's traffic.
//! From: port security of Neutron and OVN, SAVI (RFC 7039); the operator's `addresses` rather than what is seen first.
//! Not here: which frames are claims (`wire::binding`), a frame's receiver (`mac_table`), frames from behind the uplink.
//! Invariant: where a policy states no addresses, nothing is looked at; a tenant that states some sends from no others, and
//! no tenant claims an address that only others state, unless its `binding` is `off`.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use plimsoll_policy::{Addresses as Stated, Binding, Prefix};
use plimsoll_ports::Port;
use plimsoll_units::Nanos;
use plimsoll_wire::binding::{Addresses, link_local_owner, only_source_counts, verify};
use plimsoll_wire::overlay::Vni;
use plimsoll_wire::{BindingError, Mac as WireMac, Parsed};

use super::Dataplane;
use super::lane::Lane;
use super::mac_table::{Mac, MacTable, Owner, is_group};

/// All tenants' addresses.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    /// By lane; none for a tenant that is held to nothing.
    lanes: Vec<Option<Bound>>,
    /// All addresses that tenants of each network state.
    stated: BTreeMap<Vni, Ranges>,
}

/// The addresses that one lane is held to.
#[derive(Debug)]
struct Bound {
    /// The tenant's network.
    network: Vni,
    /// The hardware addresses that it may send from; none: any that no other port has.
    macs: Option<Vec<Mac>>,
    /// The IP addresses that it may claim; none: those that no other tenant states.
    ips: Option<Ranges>,
    /// Whether it is a router, which sends packets of others and advertises itself.
    forwards: bool,
    /// The source of the last frame that passed: most frames come from it again.
    last: Option<(WireMac, IpAddr)>,
}

impl Bindings {
    /// Whether a frame from this lane bears and claims only its tenant's addresses. A port whose hardware address is not
    /// known has the first that it sends from: that is written to `first`.
    #[inline]
    pub(crate) fn verify(
        &mut self,
        index: usize,
        frame: &[u8],
        parsed: &Parsed,
        macs: &mut MacTable,
        (first, now): (&mut Option<Mac>, Nanos),
    ) -> Result<(), BindingError> {
        let Some(Some(bound)) = self.lanes.get_mut(index) else { return Ok(()) };
        let source = parsed.ip.as_ref().filter(|ip| only_source_counts(ip));
        let source = source.map(|ip| (parsed.src_mac, ip.src));
        if source.is_some() && source == bound.last {
            return Ok(());
        }
        let lane = Owner::Lane(u32::try_from(index).unwrap_or(u32::MAX));
        bound.meet(parsed.src_mac.0, lane, macs, (first, now));
        verify(frame, parsed, &View { bound, stated: self.stated.get(&bound.network), macs, lane })?;
        bound.last = source.or(bound.last);
        Ok(())
    }

    /// The first address that this lane sent from is another tenant's: the next free one that it sends from is its own.
    pub(super) fn lose_first(&mut self, lane: usize) {
        if let Some(Some(bound)) = self.lanes.get_mut(lane) {
            (bound.macs, bound.last) = (Some(Vec::new()), None);
        }
    }
}

impl Bound {
    /// The addresses that a tenant is held to by its policy. `macs` are its port's; `others` says whether any tenant
    /// of its network states an address.
    fn of(network: Vni, stated: &Stated, macs: &[Mac], others: bool) -> Option<Self> {
        let held = stated.binding != Binding::Off && (stated.binds_macs() || others);
        held.then(|| Self {
            network,
            macs: stated.binds_macs().then(|| macs.to_vec()),
            ips: stated.binds_ips().then(|| Ranges::of(stated.ips.iter())),
            forwards: stated.binding == Binding::Router,
            last: None,
        })
    }

    /// Takes the address for the port's own where none is known, unless another has it.
    fn meet(&mut self, mac: Mac, lane: Owner, table: &mut MacTable, (first, now): (&mut Option<Mac>, Nanos)) {
        let unknown = self.macs.as_ref().is_some_and(Vec::is_empty);
        let free = table.owner(self.network, mac).is_none_or(|owner| owner == lane);
        if unknown && free && !is_group(mac) && mac != Mac::default() {
            self.macs = Some(vec![mac]);
            *first = Some(mac);
            table.pin_first(self.network, mac, lane, now);
        }
    }
}

/// A lane's addresses, as the frames' judge asks for them.
struct View<'a> {
    bound: &'a Bound,
    /// What tenants of its network state.
    stated: Option<&'a Ranges>,
    macs: &'a MacTable,
    lane: Owner,
}

impl Addresses for View<'_> {
    #[inline]
    fn has_mac(&self, mac: WireMac) -> bool {
        match &self.bound.macs {
            Some(own) => own.contains(&mac.0),
            None => !self.macs.is_pinned_for_another(self.bound.network, mac.0, self.lane),
        }
    }

    fn owns(&self, ip: IpAddr) -> bool {
        match &self.bound.ips {
            Some(own) => own.contains(ip) || link_local_owner(ip).is_some_and(|mac| self.has_mac(mac)),
            None => !self.is_anothers(ip),
        }
    }

    fn is_anothers(&self, ip: IpAddr) -> bool {
        let own = self.bound.ips.as_ref().is_some_and(|own| own.contains(ip));
        // A link-local address that is made from a hardware address belongs to that one.
        let made_by = link_local_owner(ip);
        let made_by_another = made_by.is_some_and(|mac| {
            let network = self.bound.network;
            self.macs.is_pinned_for_another(network, mac.0, self.lane)
                || self.macs.owner(network, mac.0) == Some(Owner::Uplink)
        });
        !own && (self.stated.is_some_and(|stated| stated.contains(ip)) || made_by_another)
    }

    fn forwards(&self) -> bool {
        self.bound.forwards
    }
}

impl Dataplane {
    /// Takes over the addresses of a new policy.
    pub(super) fn state_addresses(&mut self, stated: Vec<(String, Stated)>) {
        let mut stated: HashMap<String, Stated> = stated.into_iter().collect();
        for lane in self.tenants.all() {
            // A tenant that is gone may have the name of one that is new.
            let own = lane.tenant.and_then(|_| stated.remove(&lane.name));
            lane.addresses = own.unwrap_or_default();
        }
        self.pin_addresses();
    }

    /// Each tenant has the addresses of its own interface and those that its operator states, which no other can take.
    pub(super) fn pin_addresses(&mut self) {
        let macs: Vec<Vec<Mac>> = (0..self.tenants.lanes.len()).map(|index| self.macs_of(index)).collect();
        // Twice, as an address that one tenant had may be another's now.
        for _ in 0..2 {
            for (index, macs) in (0..).zip(&macs) {
                let Some(lane) = &self.tenants.lanes[index as usize] else { continue };
                self.macs.pin_all(lane.network, macs, Owner::Lane(index));
            }
        }
        let mut ips: BTreeMap<Vni, Vec<&Prefix>> = BTreeMap::new();
        for lane in self.tenants.lanes.iter().flatten() {
            ips.entry(lane.network).or_default().extend(&lane.addresses.ips);
        }
        let ranges = ips.into_iter().map(|(network, ips)| (network, Ranges::of(ips.into_iter())));
        let stated: BTreeMap<Vni, Ranges> =
            ranges.filter(|(_, stated)| *stated != Ranges::default()).collect();
        let bound = |(lane, macs): (&mut Option<Box<Lane>>, &Vec<Mac>)| {
            let lane = lane.as_mut().filter(|lane| lane.tenant.is_some())?;
            lane.source = None;
            Bound::of(lane.network, &lane.addresses, macs, stated.contains_key(&lane.network))
        };
        let lanes = self.tenants.lanes.iter_mut().zip(&macs).map(bound).collect();
        self.tenants.bindings = Bindings { lanes, stated };
    }

    /// The hardware addresses of a lane's port: those that other hosts know it by, or else the interface's; those that are
    /// stated, and the one that it began to send from where there is none of these.
    pub(super) fn macs_of(&self, index: usize) -> Vec<Mac> {
        let Some(lane) = &self.tenants.lanes[index] else { return Vec::new() };
        if lane.tenant.is_none() {
            return Vec::new();
        }
        let own = self.fleet.iter().flat_map(|fleet| &fleet.map.overlay.own().tenants);
        let known = own.filter(|known| known.name == lane.name).flat_map(|known| &known.macs);
        let mut macs: Vec<Mac> = known.map(|mac| mac.0).collect();
        if macs.is_empty() {
            macs.extend(lane.port.as_ref().and_then(Port::tenant_mac));
        }
        macs.extend(&lane.told_macs);
        macs.extend(lane.addresses.macs.iter().map(|mac| mac.0));
        if macs.is_empty() {
            macs.extend(lane.first_mac);
        }
        macs
    }
}

/// Addresses as sorted ranges that do not touch: found by bisection, however many there are.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ranges {
    v4: Vec<(u128, u128)>,
    v6: Vec<(u128, u128)>,
}

impl Ranges {
    fn of<'a>(prefixes: impl Iterator<Item = &'a Prefix>) -> Self {
        let mut ranges = Self::default();
        for prefix in prefixes {
            let (first, all, width) = match prefix.addr {
                IpAddr::V4(addr) => (u128::from(u32::from(addr)), &mut ranges.v4, 32),
                IpAddr::V6(addr) => (u128::from(addr), &mut ranges.v6, 128),
            };
            let span = u128::MAX.checked_shr(128 - (width - u32::from(prefix.len))).unwrap_or(0);
            all.push((first, first | span));
        }
        join(&mut ranges.v4);
        join(&mut ranges.v6);
        ranges
    }

    fn contains(&self, ip: IpAddr) -> bool {
        let (number, all) = match ip {
            IpAddr::V4(ip) => (u128::from(u32::from(ip)), &self.v4),
            IpAddr::V6(ip) => (u128::from(ip), &self.v6),
        };
        let after = all.partition_point(|&(first, _)| first <= number);
        after.checked_sub(1).is_some_and(|at| number <= all[at].1)
    }
}

fn join(ranges: &mut Vec<(u128, u128)>) {
    ranges.sort_unstable();
    ranges.dedup_by(|next, before| {
        let joins = next.0 <= before.1;
        if joins {
            before.1 = before.1.max(next.1);
        }
        joins
    });
}

#[cfg(test)]
mod tests {
    use super::super::mac_table::NO_NETWORK;
    use super::*;
    use plimsoll_wire::{neighbour, parse};
    use proptest::prelude::*;

    proptest! {
        /// Beside the prefixes themselves, asked one by one.
        #[test]
        fn ranges_hold_what_the_prefixes_do(
            prefixes in prop::collection::vec((0..4_u32, 24..=32_u8, any::<bool>()), 0..8),
            asked in prop::collection::vec((0..1_024_u32, any::<bool>()), 1..20),
        ) {
            let text = |net: u32, len: u8, six: bool| match six {
                true => format!("2001:db8::{:x}:0/{}", net, 96 + len),
                false => format!("10.0.{net}.0/{len}"),
            };
            let prefixes: Vec<Prefix> = prefixes
                .into_iter()
                .map(|(net, len, six)| text(net, len, six).parse().expect("a prefix"))
                .collect();
            let ranges = Ranges::of(prefixes.iter());
            for (number, six) in asked {
                let ip: IpAddr = match six {
                    true => std::net::Ipv6Addr::from((0x2001_0db8_u128 << 96) | u128::from(number % 8) << 16 | u128::from(number)).into(),
                    false => std::net::Ipv4Addr::from(0x0a00_0000 | number).into(),
                };
                let held = prefixes.iter().any(|prefix| prefix.contains(ip));
                prop_assert_eq!(ranges.contains(ip), held, "{} in {:?}", ip, prefixes);
            }
        }
    }

    /// One of a few frames: from these addresses, as UDP or as a claim.
    fn frame(at: u8, from: u8, claim: bool) -> Vec<u8> {
        let (mac, ip) = (WireMac([2, 0, 0, 0, 0, at]), IpAddr::from([10, 0, 0, from]));
        if claim {
            let mut frame = vec![0; neighbour::LONGEST];
            let len =
                neighbour::tell((ip, mac), ([10, 0, 0, 9].into(), mac), &mut frame).expect("one family");
            frame.truncate(len);
            return frame;
        }
        let mut frame =
            [&[2, 0, 0, 0, 0, 9][..], &mac.0, &[8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]].concat();
        frame.extend([10, 0, 0, from, 10, 0, 0, 9, 0, 7, 0, 7, 0, 8, 0, 0]);
        frame
    }

    fn bindings() -> Bindings {
        let stated = |ips: &str, binding| Stated {
            ips: ips.split(' ').filter(|ip| !ip.is_empty()).map(|ip| ip.parse().expect("a prefix")).collect(),
            macs: Vec::new(),
            binding,
        };
        let all = [
            (stated("10.0.0.0 10.0.0.4/31", Binding::Strict), [2, 0, 0, 0, 0, 0]),
            (stated("10.0.0.1", Binding::Router), [2, 0, 0, 0, 0, 1]),
            (stated("", Binding::Strict), [2, 0, 0, 0, 0, 2]),
            (stated("10.0.0.3", Binding::Off), [2, 0, 0, 0, 0, 3]),
        ];
        let lanes = all.iter().map(|(stated, mac)| Bound::of(NO_NETWORK, stated, &[*mac], true)).collect();
        let stated = Ranges::of(all.iter().flat_map(|(stated, _)| &stated.ips));
        Bindings { lanes, stated: BTreeMap::from([(NO_NETWORK, stated)]) }
    }

    proptest! {
        /// Earlier frames change no verdict.
        #[test]
        fn a_frame_is_judged_by_itself(frames in prop::collection::vec((0..4_usize, 0..4_u8, 0..8_u8, any::<bool>()), 1..60)) {
            let mut macs = MacTable::new(4);
            for lane in 0..4_u8 {
                macs.pin(NO_NETWORK, [2, 0, 0, 0, 0, lane], Owner::Lane(lane.into()));
            }
            let mut bindings = bindings();
            for (lane, at, from, claim) in frames {
                let frame = frame(at, from, claim);
                let parsed = parse(&frame).expect("sound headers");
                let verdict = bindings.verify(lane, &frame, &parsed, &mut macs, (&mut None, Nanos::ZERO));
                let fresh = super::tests::bindings().verify(lane, &frame, &parsed, &mut macs, (&mut None, Nanos::ZERO));
                prop_assert_eq!(verdict, fresh);
                let (own_mac, stated) = (usize::from(at) == lane, [0, 4, 5, 1, 3].contains(&from));
                let own_ip = match lane { 0 => [0, 4, 5].contains(&from), 1 => from == 1, _ => !stated };
                let good = match lane { 3 => true, 1 => own_mac && (own_ip || !claim), 0 => own_mac && own_ip, _ => own_mac && own_ip };
                prop_assert_eq!(verdict.is_ok(), good, "lane {}, at {}, from {}, {}", lane, at, from, claim);
            }
        }
    }

    /// The thread's own, as others may want the core.
    fn cpu_time() -> std::time::Duration {
        let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
        nix::time::clock_gettime(clock).expect("every kernel has it").into()
    }

    /// What it costs, to be printed: `cargo test --release -p plimsoll-daemon --lib -- --ignored --nocapture binding_costs`.
    #[test]
    #[ignore = "a measurement"]
    fn binding_costs() {
        const TURNS: u32 = 20_000_000;
        let mut macs = MacTable::new(4);
        let frames = [frame(0, 0, false), frame(0, 4, false), frame(0, 0, true), frame(0, 1, false)];
        let parsed: Vec<Parsed> = frames.iter().map(|frame| parse(frame).expect("sound headers")).collect();
        let mut time = |what: &str, bindings: &mut Bindings, used: &[usize]| {
            let start = cpu_time();
            for turn in 0..TURNS {
                let at = used[turn as usize % used.len()];
                let _ = std::hint::black_box(bindings.verify(
                    0,
                    &frames[at],
                    &parsed[at],
                    &mut macs,
                    (&mut None, Nanos::ZERO),
                ));
            }
            eprintln!("{what}: {:.1} ns", (cpu_time() - start).as_nanos() as f64 / f64::from(TURNS));
        };
        let start = cpu_time();
        for _ in 0..TURNS {
            let _ = std::hint::black_box(parse(std::hint::black_box(&frames[0])));
        }
        eprintln!(
            "the parser, to compare: {:.1} ns",
            (cpu_time() - start).as_nanos() as f64 / f64::from(TURNS)
        );
        time("no tenant states addresses", &mut Bindings::default(), &[0]);
        time("from where the last frame came", &mut bindings(), &[0]);
        time("from another own address each time", &mut bindings(), &[0, 1]);
        time("ARP", &mut bindings(), &[2]);
        time("from an address of another", &mut bindings(), &[3]);
    }

    #[test]
    fn the_widest_network_holds_all() {
        let all: Vec<Prefix> = ["0.0.0.0/0", "::/0"].map(|text| text.parse().expect("a prefix")).into();
        let ranges = Ranges::of(all.iter());
        for ip in ["255.255.255.255", "0.0.0.0", "::", "ffff::ffff"] {
            assert!(ranges.contains(ip.parse().expect("an address")));
        }
        assert!(!Ranges::default().contains("0.0.0.0".parse().expect("an address")));
    }
}
