//! The control channel: feedback between hosts in datagrams, from a thread that no packet waits for.
//!
//! Why: it costs the engine's thread only the decision; the messages are slower in exchange (PN-M18 (b)).
//! From: PicNIC §5.3.2; the same sealed messages as in the datapath.
//! Not here: the messages' content, and whether they are new (`dataplane::fleet` judges both ways together).
//! Invariant: a datagram that does not open with the fleet's key is dropped here, however many there are.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use plimsoll_control::agent::MOST_HOSTS;
use plimsoll_control::feedback::{MOST, sealed_len};
use plimsoll_control::{FleetKeys, HostId, Opener};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};

use crate::dataplane::Sent;
use crate::fleet::FleetError;
use crate::thread::{Command, Handle};

/// Messages that wait for the socket: two epochs' for a large fleet.
pub(crate) const WAITING: usize = 1_024;

/// The channel's socket.
pub(crate) fn bind(address: SocketAddr) -> Result<std::net::UdpSocket, FleetError> {
    let bound = std::net::UdpSocket::bind(address).and_then(|socket| {
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    bound.map_err(|source| FleetError::Channel { address, source })
}

/// Listens, and sends the messages in `outbox`, until the process ends. Messages open with the `keys`, and with the last ones of
/// `changed` once there are some.
pub(crate) fn open(
    socket: std::net::UdpSocket,
    (keys, changed): (&FleetKeys, watch::Receiver<Option<FleetKeys>>),
    host: u32,
    engine: Handle,
    mut outbox: mpsc::Receiver<Sent>,
) -> io::Result<()> {
    let socket = Arc::new(UdpSocket::from_std(socket)?);
    let mut opener = Opener::new(keys.own(), HostId(host), MOST_HOSTS);
    opener.set_keys(keys);
    tokio::spawn(listen(Arc::clone(&socket), opener, changed, engine));
    tokio::spawn(async move {
        while let Some(Sent { to, message }) = outbox.recv().await {
            // A lost message is sent again when its content changes or is refreshed.
            let _ = socket.send_to(&message, to).await;
        }
    });
    Ok(())
}

async fn listen(
    socket: Arc<UdpSocket>,
    mut opener: Opener,
    mut changed: watch::Receiver<Option<FleetKeys>>,
    engine: Handle,
) {
    let mut datagram = [0; sealed_len(MOST) + 1];
    loop {
        // An error reports a datagram that was sent to a host whose daemon does not run.
        let Ok((len, _)) = socket.recv_from(&mut datagram).await else { continue };
        let message = datagram[..len].to_vec();
        if changed.has_changed().unwrap_or(false) {
            changed.borrow_and_update().iter().for_each(|keys| opener.set_keys(keys));
        }
        // Opened in a copy: the engine gets the sealed message, as it decides which message on any way is newest.
        if opener.open(&mut datagram[..len]).is_ok() && engine.send(Command::Heard(message)).is_err() {
            return;
        }
    }
}
