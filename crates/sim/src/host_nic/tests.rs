use std::path::Path;

use plimsoll_scenario::{Form, Scenario};

use super::*;
use crate::packet::Body;

const PROCESS: Span = Span::micros(40);
/// When busy threads even out the link, after the first packet.
const TURN: Span = Span::micros(10);

/// The NIC of a host with two tenants, each on a thread of its own that needs [`PROCESS`] for a packet, and a flow queue of each.
fn two_threads() -> (HostNic, [QueueId; 2]) {
    let text = "{name: t, rate: 10Gbps, duration: 100ms, systems: [plimsoll], engine: {threads: 2}, \
                tenants: {a: {}, b: {}}, workloads: {w: {tenant: a, kind: bulk}}}";
    let scenario = Scenario::parse(text, "t.yaml", Path::new(""), Form::Full).expect("a scenario");
    let checked = scenario.checked(&scenario.systems[0]).expect("a policy");
    let mut host = scenario.hosts.first().expect("a host").clone();
    host.cpu = EngineCost { process: PROCESS, pull: Span::ZERO };
    let names = ["a".to_owned(), "b".to_owned()];
    let mut nic = HostNic::new(&checked, &names, (2, 0), &host, (Lateness::default(), 1));
    let queues = [0, 1].map(|tenant| nic.open(Fields::default(), tenant, None).expect("a flow queue"));
    (nic, queues)
}

fn packet() -> Packet {
    Packet::new((0, false), false, 1_500, Body::Datagram { number: 0, offset: 0, size: 1_458, last: true })
}

/// The world polls no NIC whose threads are all busy: a turn that ends meanwhile would be due for ever, and time would stand still.
#[test]
fn while_all_threads_are_busy_their_turn_waits_for_the_first() {
    let (mut nic, queues) = two_threads();
    for (tenant, queue) in (0..).zip(queues) {
        nic.offer(tenant, queue, &packet(), Nanos::ZERO).expect("room");
        nic.ring(Nanos::ZERO + Span::micros(u64::from(tenant)));
    }
    let first = Nanos::ZERO + PROCESS;
    assert!(nic.is_busy(Nanos::ZERO + TURN), "the turn ends while both work");
    assert_eq!(nic.next(), Some(first));
    assert!(!nic.is_busy(first));
}

#[test]
fn while_a_thread_is_free_the_turn_ends_on_time() {
    let (mut nic, [queue, _]) = two_threads();
    nic.offer(0, queue, &packet(), Nanos::ZERO).expect("room");
    nic.ring(Nanos::ZERO);
    assert!(!nic.is_busy(Nanos::ZERO + TURN));
    assert_eq!(nic.next(), Some(Nanos::ZERO + TURN));
}
