//! The control channel: feedback between hosts in datagrams, from a thread that no packet waits for.
//!
//! Why: it costs the engine's thread nothing but the decision, at the price of a way that is slower (PN-M18 (b)).
//! From: PicNIC §5.3.2; the same sealed messages as in the datapath.
//! Not here: what they say and whether they are new (`engine::fleet` judges both ways together).
//! Invariant: what does not open with the fleet's key ends here, whoever sends how much of it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use plimsoll_control::agent::MOST_HOSTS;
use plimsoll_control::feedback::{MOST, sealed_len};
use plimsoll_control::{HostId, Opener};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use crate::engine::Sent;
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

/// Listens, and sends what `outbox` brings, until the process ends.
pub(crate) fn open(
    socket: std::net::UdpSocket,
    key: &[u8; 32],
    host: u32,
    engine: Handle,
    mut outbox: mpsc::Receiver<Sent>,
) -> io::Result<()> {
    let socket = Arc::new(UdpSocket::from_std(socket)?);
    let opener = Opener::new(key, HostId(host), MOST_HOSTS);
    tokio::spawn(listen(Arc::clone(&socket), opener, engine));
    tokio::spawn(async move {
        while let Some(Sent { to, message }) = outbox.recv().await {
            // What is lost is said again, as what changed or when it is refreshed.
            let _ = socket.send_to(&message, to).await;
        }
    });
    Ok(())
}

async fn listen(socket: Arc<UdpSocket>, mut opener: Opener, engine: Handle) {
    let mut datagram = [0; sealed_len(MOST) + 1];
    loop {
        // An error is an answer to what was sent, from a host whose daemon is away.
        let Ok((len, _)) = socket.recv_from(&mut datagram).await else { continue };
        let message = datagram[..len].to_vec();
        // Opened in place, so that the engine gets what is still sealed: it judges what is newer on all ways together.
        if opener.open(&mut datagram[..len]).is_ok() && engine.send(Command::Heard(message)).is_err() {
            return;
        }
    }
}
