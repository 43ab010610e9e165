//! Both directions of a connection: a sender and a receiver whose acknowledgements ride on data.

use plimsoll_units::{Bytes, Nanos, Span};

use super::config::Config;
use super::receiver::Receiver;
use super::segment::{Ack, Flags, Segment};
use super::sender::Sender;

/// A packet from one end of a connection: a segment, an acknowledgement, or both in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packet {
    /// Data, a SYN or a window probe.
    pub segment: Option<Segment>,
    /// The acknowledgement of the other direction. Without a segment it is a pure acknowledgement; on a SYN, the window.
    pub ack: Option<Ack>,
}

impl Packet {
    /// The number of packets on the wire. An acknowledgement with a descriptor of several packets is in each of them.
    #[must_use]
    pub fn packet_count(&self) -> u32 {
        self.segment.map_or(1, |segment| segment.packet_count())
    }

    /// Payload bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.segment.map_or(0, |segment| segment.len)
    }

    /// Whether it is an acknowledgement alone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One end of a connection in which both ends may send: request and response.
///
/// Acknowledgements travel with data where data leaves soon enough, and are delayed for it once both ends send, as in Linux.
///
/// ```
/// use plimsoll_sim::tcp::{Config, Connection};
/// use plimsoll_units::{Bytes, Nanos};
///
/// let (mut client, mut server) = (Connection::client(&Config::default()), Connection::server(&Config::default()));
/// client.write(Bytes::new(100));
/// let now = Nanos::ZERO;
/// while client.delivered() < Bytes::new(5_000) {
///     while let Some(packet) = client.poll_transmit(now) {
///         server.handle_packet(&packet, now);
///     }
///     if server.delivered() == Bytes::new(100) && server.sender().unsent() == Bytes::ZERO {
///         server.write(Bytes::new(5_000));
///     }
///     while let Some(packet) = server.poll_transmit(now) {
///         client.handle_packet(&packet, now);
///         server.handle_sent(Bytes::new(packet.len().into()));
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Connection {
    /// When data last arrived.
    heard: Option<Nanos>,
    conversation: Span,
    /// The third acknowledgement of the handshake is owed.
    confirm: bool,
    receiver: Receiver,
    sender: Sender,
}

impl Connection {
    /// The end that connects when it first has something to send.
    #[must_use]
    pub fn client(config: &Config) -> Self {
        Self {
            sender: Sender::new(config),
            receiver: Receiver::new(config),
            heard: None,
            confirm: false,
            conversation: config.delayed_ack,
        }
    }

    /// The end that waits for a connection.
    #[must_use]
    pub fn server(config: &Config) -> Self {
        let mut server = Self::client(config);
        server.sender.wait_for_peer();
        server
    }

    /// The application writes `bytes`. Ask [`Self::poll_transmit`] afterwards.
    pub fn write(&mut self, bytes: Bytes) {
        self.sender.write(bytes);
    }

    /// The application always has more to send.
    pub fn write_unlimited(&mut self) {
        self.sender.write_unlimited();
    }

    /// The application stops writing: see [`Sender::stop`].
    pub fn stop(&mut self) {
        self.sender.stop();
    }

    /// The application takes `bytes` of what has arrived; only needed without [`Config::auto_read`].
    pub fn read(&mut self, bytes: Bytes) {
        self.receiver.read(bytes);
    }

    /// Takes what the network has delivered. Ask [`Self::poll_transmit`] afterwards.
    pub fn handle_packet(&mut self, packet: &Packet, now: Nanos) {
        if let Some(segment) = &packet.segment {
            self.handle_segment(segment, now);
        }
        if let Some(ack) = &packet.ack {
            self.handle_ack(ack, now);
        }
    }

    /// The next packet that has to leave now; ask until there is none.
    pub fn poll_transmit(&mut self, now: Nanos) -> Option<Packet> {
        if let Some(ack) = self.receiver.answer_syn() {
            return Some(Packet { segment: None, ack: Some(ack) });
        }
        let confirm = core::mem::take(&mut self.confirm);
        if let Some(segment) = self.sender.poll_transmit(now) {
            if segment.len > 0 && self.heard.is_some_and(|heard| now - heard < self.conversation) {
                self.receiver.set_interactive();
            }
            let ack = match segment.flags.contains(Flags::SYN) {
                true => Some(self.receiver.window_statement()),
                false => self.receiver.piggyback(confirm),
            };
            return Some(Packet { segment: Some(segment), ack });
        }
        let ack = if confirm { self.receiver.piggyback(true) } else { self.receiver.poll_ack(now) };
        ack.map(|ack| Packet { segment: None, ack: Some(ack) })
    }

    /// `bytes` of payload have left the host's transmit path: see [`Sender::handle_sent`].
    pub fn handle_sent(&mut self, bytes: Bytes) {
        self.sender.handle_sent(bytes);
    }

    /// When to call [`Self::handle_timeout`]; `None` when nothing is waited for. It may have passed already.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.sender.poll_timeout().into_iter().chain(self.receiver.poll_timeout()).min()
    }

    /// Time has come to `now`. Early calls do nothing. Ask [`Self::poll_transmit`] afterwards.
    pub fn handle_timeout(&mut self, now: Nanos) {
        self.sender.handle_timeout(now);
        self.receiver.handle_timeout(now);
    }

    /// Bytes that have arrived in order since the start.
    #[must_use]
    pub fn delivered(&self) -> Bytes {
        self.receiver.delivered()
    }

    /// The sending half, to read its state.
    #[must_use]
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// The receiving half, to read its state.
    #[must_use]
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    fn handle_segment(&mut self, segment: &Segment, now: Nanos) {
        self.receiver.handle_segment(segment, now);
        if segment.flags.contains(Flags::SYN) {
            // The final acknowledgement of the handshake comes with or before the first request; an end that speaks
            // first is early by that half of a round trip.
            self.sender.open_passively(self.receiver.ecn());
        } else if segment.len > 0 {
            self.heard = Some(now);
        }
    }

    fn handle_ack(&mut self, ack: &Ack, now: Nanos) {
        let was_open = self.sender.is_open();
        self.sender.handle_ack(ack, now);
        if !was_open && self.sender.is_open() {
            self.receiver.open(self.sender.ecn());
            self.confirm = true;
        }
    }
}
