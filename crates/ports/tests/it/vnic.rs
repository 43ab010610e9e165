//! A client on its vNIC: what it posts arrives, completes in any order, and waits where it must.

use std::path::PathBuf;

use plimsoll_ports::{Port, Sending, Taken, Took, Trouble, VnicConfig, VnicPort, VnicRequest};
use plimsoll_vnic::{FlowSpec, PacketMetadata, Status, VnetHeader, Vnic};

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("shop.sock")
    }

    fn port(&self) -> VnicPort {
        VnicPort::open(&VnicConfig::new(self.socket())).expect("a port")
    }
}

/// A client that is welcomed by this thread's port.
fn connect(port: &mut VnicPort, place: &Place) -> Vnic {
    let path = place.socket();
    let client = std::thread::spawn(move || Vnic::connect(path));
    while !client.is_finished() {
        assert_eq!(port.request(), None);
        port.rest();
        std::thread::yield_now();
    }
    client.join().expect("no panic").expect("connected")
}

/// A flow queue that leads to `target`.
fn open(port: &mut VnicPort, client: Vnic, target: u32) -> (Vnic, u32) {
    let opening = std::thread::spawn(move || {
        let mut client = client;
        let queue = client.open_flow(&FlowSpec::default()).expect("a flow queue");
        (client, queue)
    });
    while !opening.is_finished() {
        if let Some(VnicRequest::Open(_)) = port.request() {
            port.map(target);
        }
        port.rest();
        std::thread::yield_now();
    }
    opening.join().expect("no panic")
}

fn next(port: &mut VnicPort, window: u32) -> Option<Taken> {
    match port.take(window) {
        Took::Frame(taken) => Some(taken),
        Took::Refused => panic!("a sound descriptor was refused"),
        Took::Nothing => None,
    }
}

fn frame(port: &VnicPort, taken: &Taken) -> Vec<u8> {
    let mut bytes = vec![0; taken.len];
    port.copy(&mut bytes);
    bytes
}

#[test]
fn frames_arrive_as_they_were_sent_small_and_large() {
    let place = Place::new();
    let mut port = place.port();
    let mut client = connect(&mut port, &place);
    assert_eq!(client.identity().mac, port.tenant_mac().expect("an address"));
    let frames: Vec<Vec<u8>> =
        [60, 1_514, 2_048, 2_049, 65_000].iter().map(|&len| (0..len).map(|at| at as u8).collect()).collect();
    for frame in &frames {
        client.send(0, frame).expect("room");
    }
    assert!(client.ring().expect("a kick"));
    port.begin().expect("the client is there");
    for sent in &frames {
        let taken = next(&mut port, 64).expect("one more");
        assert_eq!((taken.target, &frame(&port, &taken)), (None, sent));
        port.complete(taken.ticket, Status::Sent);
    }
    assert_eq!(next(&mut port, 64), None);
    assert_eq!(client.poll_completions(|_| {}), 0, "not before the flush");
    port.flush().expect("no trouble");
    let mut statuses = Vec::new();
    client.poll_completions(|done| statuses.push((done.queue, done.status)));
    assert_eq!(statuses, [(0, Status::Sent); 5]);
    assert_eq!((client.on_their_way(), port.in_flight()), (0, 0));
}

#[test]
fn a_flow_queue_at_its_window_holds_up_no_other_and_completes_in_any_order() {
    let place = Place::new();
    let mut port = place.port();
    let client = connect(&mut port, &place);
    let (client, slow) = open(&mut port, client, 70);
    let (mut client, fast) = open(&mut port, client, 71);
    for number in 0..4 {
        client.send(slow, &[number; 60]).expect("room");
    }
    client.send(fast, &[9; 60]).expect("room");
    client.ring().expect("a kick");
    port.begin().expect("the client is there");
    let taken: Vec<Taken> = core::iter::from_fn(|| next(&mut port, 2)).collect();
    let targets: Vec<_> = taken.iter().map(|taken| taken.target).collect();
    assert_eq!(targets, [Some(70), Some(71), Some(70)], "in turn, and two of the slow one");
    // The last first; then the slow flow queue may go on.
    port.complete(taken[1].ticket, Status::Dropped);
    assert_eq!(next(&mut port, 2), None);
    port.complete(taken[0].ticket, Status::Sent);
    let third = next(&mut port, 2).expect("the window has opened");
    assert_eq!(frame(&port, &third), [2; 60]);
    port.flush().expect("no trouble");
    let mut done = Vec::new();
    client.poll_completions(|completion| done.push((completion.queue, completion.status)));
    assert_eq!(done, [(fast, Status::Dropped), (slow, Status::Sent)]);
}

#[test]
fn metadata_of_a_flow_queue_and_of_a_frame_arrive_with_the_core_that_rang() {
    let place = Place::new();
    let mut port = place.port();
    let client = connect(&mut port, &place);
    let (mut client, queue) = open(&mut port, client, 70);
    let mut poster = client.poster(&[queue], 10).expect("a doorbell queue and buffers");
    let none = PacketMetadata::default();
    let flow = PacketMetadata { user: Some(1_000), app: Some(7), ..none };
    let own = PacketMetadata { app: Some(8), cgroup: Some(1 << 40), ..none };
    client.set_metadata(0, &PacketMetadata { priority: Some(6), ..none }).expect("room");
    client.send(0, &[1; 60]).expect("room");
    client.ring().expect("a kick");
    poster.set_metadata(queue, &flow).expect("room");
    poster.send(queue, &[2; 60]).expect("room");
    let parts: [&[u8]; 2] = [&[3; 60], &[4; 3_000]];
    poster.send_described(queue, &parts, &VnetHeader::default(), 9, &own).expect("room");
    poster.ring().expect("a kick");
    port.begin().expect("the client is there");
    let mut found: Vec<_> = core::iter::from_fn(|| {
        let taken = next(&mut port, 64)?;
        port.complete(taken.ticket, Status::Sent);
        Some((taken.core, taken.metadata, taken.len, taken.tag))
    })
    .collect();
    let mixed = PacketMetadata { app: Some(8), cgroup: Some(1 << 40), ..flow };
    let first = PacketMetadata { priority: Some(6), ..none };
    found.sort_by_key(|&(core, _, len, _)| (core, len));
    assert_eq!(found, [(Some(0), first, 60, 0), (Some(1), flow, 60, 0), (Some(1), mixed, 3_060, 9)]);
    // A context descriptor is given back with its frame.
    port.flush().expect("no trouble");
    client.poll_completions(|_| {});
    assert_eq!((poster.poll_completions(|_| {}), poster.on_their_way()), (2, 0));
    // What is said anew takes the place of all that was said before.
    poster.set_metadata(queue, &none).expect("room");
    poster.send(queue, &[5; 60]).expect("room");
    poster.ring().expect("a kick");
    port.begin().expect("the client is there");
    assert_eq!(next(&mut port, 64).map(|taken| taken.metadata), Some(none));
}

/// A user or application may have the number of a flow queue that another thread posts to.
#[test]
fn the_words_of_a_note_publish_no_flow_ring() {
    let place = Place::new();
    let mut port = place.port();
    let client = connect(&mut port, &place);
    let (mut client, queue) = open(&mut port, client, 70);
    let mut poster = client.poster(&[queue], 10).expect("a doorbell queue and buffers");
    poster.send(queue, &[1; 60]).expect("room");
    poster.ring().expect("a kick");
    let told = PacketMetadata { user: Some(queue), app: Some(queue), ..PacketMetadata::default() };
    client.set_metadata(0, &told).expect("room");
    client.set_tag(0, queue).expect("room");
    client.ring().expect("a kick");
    port.begin().expect("the client is there");
    assert_eq!(next(&mut port, 64).map(|taken| taken.len), Some(60), "the other thread's frame");
    assert_eq!(Port::Vnic(port).counters().rx_drops.iter().sum::<u64>(), 0);
}

#[test]
fn a_queue_that_the_client_has_not_is_refused_and_counted() {
    let place = Place::new();
    let mut port = place.port();
    let client = connect(&mut port, &place);
    let (mut client, queue) = open(&mut port, client, 5);
    for other in [queue, queue + 1, 255] {
        client.send(other, &[1; 60]).expect("room in its own ring");
    }
    port.unmap_target(5);
    client.ring().expect("a kick");
    port.begin().expect("the client is there");
    assert_eq!(port.take(64), Took::Nothing);
    let counted = Port::Vnic(port).counters();
    assert_eq!(counted.rx_dropped(plimsoll_ports::DropReason::UnmappedQueue), 3);
}

#[test]
fn the_client_receives_what_it_has_buffers_for_and_is_woken() {
    let place = Place::new();
    let mut port = place.port();
    assert_eq!(port.send(&[1; 60], None), Err(Trouble::Down));
    let mut client = connect(&mut port, &place);
    let waiting = std::thread::spawn(move || {
        let woken = client.wait(10_000).expect("the daemon is there");
        (client, woken)
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    for number in 0..512_u32 {
        assert_eq!(port.send(&[number as u8; 60], None), Ok(Sending::Sent));
    }
    assert_eq!(port.send(&[0; 60], None), Ok(Sending::Full));
    port.flush().expect("no trouble");
    let (mut client, woken) = waiting.join().expect("no panic");
    assert!(woken);
    let mut buffer = [0; 2_048];
    for number in 0..512_u32 {
        assert_eq!(client.receive(&mut buffer), Some(60));
        assert_eq!(buffer[..60], [number as u8; 60]);
    }
    assert_eq!(client.receive(&mut buffer), None);
    assert_eq!(port.send(&[7; 60], None), Ok(Sending::Sent), "its buffers are back");
}

#[test]
fn a_client_that_goes_frees_its_place_for_the_next() {
    let place = Place::new();
    let mut port = place.port();
    let mut client = connect(&mut port, &place);
    client.send(0, &[1; 60]).expect("room");
    client.ring().expect("a kick");
    port.begin().expect("the client is there");
    let taken = next(&mut port, 64).expect("a frame");
    drop(client);
    assert!(!port.rest());
    assert_eq!(port.request(), None);
    assert_eq!(port.begin(), Err(Trouble::Gone));
    drop(port);
    assert!(!place.socket().exists());
    let mut port = place.port();
    port.complete(taken.ticket, Status::Sent);
    let mut client = connect(&mut port, &place);
    port.flush().expect("no trouble");
    assert_eq!(client.poll_completions(|_| {}), 0, "what the one before had sent is not the next one's");
}

#[test]
fn a_second_client_is_told_that_it_is_one_too_many() {
    let place = Place::new();
    let mut port = place.port();
    let mut first = connect(&mut port, &place);
    let path = place.socket();
    let second = std::thread::spawn(move || Vnic::connect(path));
    while !second.is_finished() {
        port.rest();
        std::thread::yield_now();
    }
    let error = second.join().expect("no panic").expect_err("occupied").to_string();
    assert!(error.contains("has a client already"), "{error}");
    assert!(VnicPort::open(&VnicConfig::new(place.socket())).is_err(), "nor is its socket taken away");
    first.send(0, &[1; 60]).expect("room");
    first.ring().expect("a kick");
    port.begin().expect("the first is still there");
    assert!(next(&mut port, 64).is_some());
}

#[test]
fn a_socket_without_a_listener_is_replaced() {
    let place = Place::new();
    drop(std::os::unix::net::UnixListener::bind(place.socket()).expect("a socket"));
    drop(place.port());
    std::fs::write(place.socket(), "not a socket").expect("a file");
    let error = VnicPort::open(&VnicConfig::new(place.socket())).expect_err("taken").to_string();
    assert!(error.contains("another program listens there, or it is not a socket"), "{error}");
}
