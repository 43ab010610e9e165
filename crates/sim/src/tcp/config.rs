//! The settings of an end point, with Linux's defaults.

use plimsoll_units::{Bytes, Span};

/// Which algorithm governs the congestion window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Congestion {
    /// RFC 5681 and RFC 6582.
    NewReno,
    /// RFC 9438 with fast convergence, its Reno-friendly region and `HyStart`: Linux's default.
    #[default]
    Cubic,
    /// RFC 8257. Needs [`Config::ecn`], and a queue that marks at a low threshold.
    Dctcp,
    /// BBR, version 1, as in Linux. It paces whatever [`Config::pacing`] says, and needs SACK.
    Bbr,
}

/// The bytes of a socket that may wait in its host's own transmit path (Linux's TCP small queues).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalQueue {
    /// No bound but the sender's window; `handle_sent` need not be called.
    Unlimited,
    /// Two segments or about a millisecond's bytes at the connection's rate, whichever is more, but no more than this:
    /// Linux with its `tcp_limit_output_bytes`.
    Small(Bytes),
    /// This number of bytes, at any rate.
    Fixed(Bytes),
}

/// How an end point behaves. The default is a Linux socket, without ECN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Payload bytes of a full packet; at least 1.
    pub mss: u16,
    /// The algorithm that governs the congestion window.
    pub congestion: Congestion,
    /// Ask for ECN when connecting, accept it when asked. Only if both ends do is data ECN-capable.
    pub ecn: bool,
    /// Both ends use SACK (RFC 2018). Without it losses are found by three duplicate acknowledgements, one per round
    /// trip (RFC 6582).
    pub sack: bool,
    /// A SYN goes first and the data waits for its answer. `false`: the connection is there from the start, and the
    /// other end has the same `receive_buffer`.
    pub handshake: bool,
    /// Initial congestion window, in segments (RFC 6928: 10).
    pub initial_window: u32,
    /// Bytes up to which the receiver's window grows as the stream comes: at most 1 GiB. Linux's `tcp_rmem`.
    pub receive_buffer: Bytes,
    /// Bytes that a socket holds until they are acknowledged: Linux's `tcp_wmem`, up to which it grows as the window does.
    pub send_buffer: Bytes,
    /// The largest descriptor for segmentation offload; one `mss` or less turns offload off.
    pub offload: Bytes,
    /// The sender's credit in its host's transmit path.
    pub local_queue: LocalQueue,
    /// Spread segments over the round trip, at Linux's rates: twice the window per round trip in slow start, 1.2 times
    /// after it.
    pub pacing: bool,
    /// Where BBR's probing begins, so that flows do not probe together.
    pub seed: u64,
    /// Probe for a lost tail before the timeout (RFC 8985 §7).
    pub tail_loss_probe: bool,
    /// Leave slow start before it overflows the queue, by Linux's `HyStart`. CUBIC only.
    pub hystart: bool,
    /// Decay the window of a connection that has been idle for longer than its timeout (RFC 2861, Linux's
    /// `tcp_slow_start_after_idle`).
    pub slow_start_after_idle: bool,
    /// Timeout before the first measured round trip: for a lost SYN.
    pub initial_rto: Span,
    /// As in Linux a floor of the timeout's margin over the smoothed round trip, not of the whole.
    pub min_rto: Span,
    /// The longest timeout after backing off.
    pub max_rto: Span,
    /// How long an acknowledgement may be delayed; zero acknowledges each segment.
    pub delayed_ack: Span,
    /// Packets that are acknowledged at once at the start of a connection (Linux's quick acknowledgements).
    pub quick_acks: u8,
    /// The application reads what arrives at once. `false`: the window closes until [`super::Receiver::read`].
    pub auto_read: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mss: 1_448,
            congestion: Congestion::Cubic,
            ecn: false,
            sack: true,
            handshake: true,
            initial_window: 10,
            receive_buffer: Bytes::kib(6 * 1_024),
            send_buffer: Bytes::kib(4 * 1_024),
            offload: Bytes::ZERO,
            local_queue: LocalQueue::Small(Bytes::kib(4 * 1_024)),
            pacing: false,
            seed: 1,
            tail_loss_probe: true,
            hystart: true,
            slow_start_after_idle: true,
            initial_rto: Span::secs(1),
            min_rto: Span::millis(200),
            max_rto: Span::secs(120),
            delayed_ack: Span::millis(40),
            quick_acks: 16,
            auto_read: true,
        }
    }
}

impl Config {
    /// Linux's defaults with DCTCP and the ECN that it needs.
    #[must_use]
    pub fn dctcp() -> Self {
        Self { congestion: Congestion::Dctcp, ecn: true, ..Self::default() }
    }

    /// The segment size, which is never zero.
    pub(super) fn segment_size(&self) -> u16 {
        self.mss.max(1)
    }

    /// The window with which a receiver begins: Linux's, and of a connection that is there from the start the largest one.
    pub(super) fn first_window(&self) -> u32 {
        if self.handshake { self.window_limit().min(FIRST_WINDOW) } else { self.window_limit() }
    }

    /// The receive buffer as an acknowledgement can state it.
    pub(super) fn window_limit(&self) -> u32 {
        u32::try_from(self.receive_buffer.as_u64()).unwrap_or(u32::MAX).min(1 << 30)
    }
}

const FIRST_WINDOW: u32 = 1 << 16;
