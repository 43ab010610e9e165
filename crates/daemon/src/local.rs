//! The API's Unix socket, whose connections take bytes and no file descriptors.
//!
//! Why: a program that connects may send file descriptors, and closing these can take as long as that program likes; the
//! thread that would wait for it answers requests, signals and the service manager's watchdog.
//! From: `plimsoll_ports::foreign`.
//! Not here: how many connections there may be and how long each may take (`connections`).
//! Invariant: this thread neither receives a file descriptor nor closes one that was sent to it.

use std::io;
use std::os::unix::net;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use plimsoll_ports::foreign::{Closer, Foreign, hang_up, read};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{UnixListener, UnixStream};

use crate::audit::Asker;

/// A listening socket, bound before there is a runtime.
#[derive(Debug)]
pub(crate) struct LocalSocket {
    socket: Foreign<net::UnixListener>,
    closer: Closer,
}

/// A listening socket within a runtime.
#[derive(Debug)]
pub(crate) struct LocalListener {
    listener: Foreign<UnixListener>,
    closer: Closer,
}

/// A connection. Its other end learns at once when it is dropped; its close may take longer.
#[derive(Debug)]
pub(crate) struct Local(Foreign<UnixStream>);

/// Between two looks at whether enough has been closed.
const PAUSE: Duration = Duration::from_millis(5);

impl LocalSocket {
    /// Listens at `path`, where no file may be.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let closer = Closer::of(path)?;
        let socket = Foreign::new(net::UnixListener::bind(path)?, &closer);
        socket.set_nonblocking(true)?;
        Ok(Self { socket, closer })
    }

    /// Accepts connections, within a runtime.
    pub(crate) fn listener(&self) -> io::Result<LocalListener> {
        let listener = UnixListener::from_std(self.socket.try_clone()?)?;
        Ok(LocalListener { listener: Foreign::new(listener, &self.closer), closer: self.closer.clone() })
    }
}

impl Listener for LocalListener {
    type Io = Local;
    type Addr = Asker;

    /// Accepts a connection, but not while as many connections wait to be closed as may.
    async fn accept(&mut self) -> (Local, Asker) {
        loop {
            while self.closer.is_full() {
                tokio::time::sleep(PAUSE).await;
            }
            #[expect(clippy::disallowed_methods, reason = "what comes is foreign from here on")]
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let asker = asker(&stream);
                    return (Local(Foreign::new(stream, &self.closer)), asker);
                }
                // The connection has gone meanwhile, or the process is short of descriptors for a moment.
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<Asker> {
        Ok(Asker::Daemon)
    }
}

/// The process at the other end, as it was when it connected.
fn asker(stream: &UnixStream) -> Asker {
    match stream.peer_cred() {
        Ok(peer) => Asker::Process { user: peer.uid(), id: peer.pid().filter(|&id| id > 0) },
        Err(_) => Asker::Unknown,
    }
}

impl AsyncRead for Local {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = &self.0;
        loop {
            ready!(stream.poll_read_ready(context))?;
            let room = into.initialize_unfilled();
            match stream.try_io(Interest::READABLE, || read(&**stream, room)) {
                Ok(len) => {
                    into.advance(len);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Local {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(context)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        hang_up(&*self.0);
    }
}

#[cfg(test)]
#[path = "../../ports/tests/it/support/linger.rs"]
#[expect(dead_code, reason = "the tests of ports use the rest")]
mod linger;

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read, Write};
    use std::net::TcpStream;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream as Plain;
    use std::time::Instant;

    use axum::Router;
    use axum::routing::get;
    use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};

    use super::linger::{LINGER, lingering};
    use super::*;
    use crate::connections;

    fn send_along(end: &Plain, bytes: &[u8], connection: TcpStream) {
        let descriptors = [connection.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&descriptors)];
        sendmsg::<UnixAddr>(end.as_raw_fd(), &[IoSlice::new(bytes)], &rights, MsgFlags::empty(), None)
            .expect("room");
        // Should the other side have closed it already, it is this one that lingers.
        std::thread::spawn(move || drop(connection));
    }

    /// Sends on a new connection; answers what comes back before it ends.
    fn ask(path: &Path, send: impl FnOnce(&Plain)) -> String {
        let mut end = Plain::connect(path).expect("a listener");
        end.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        send(&end);
        let mut got = Vec::new();
        // One that is hung up on may find its bytes unread.
        let _ = end.read_to_end(&mut got);
        String::from_utf8_lossy(&got).into_owned()
    }

    const LIVES_ON: &[u8] = b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n";
    const REQUEST: &[u8] = b"GET /page HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

    #[test]
    fn descriptors_that_come_with_a_request_end_its_connection_without_a_wait() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("api.sock");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let begun = Instant::now();
        runtime.block_on(async {
            let socket = LocalSocket::bind(&path).expect("free");
            let listener = socket.listener().expect("a runtime");
            let router = Router::new().route("/page", get(|| async { "page" }));
            tokio::spawn(connections::serve(listener, router, connections::SOCKET));
            let path = path.clone();
            let asking = tokio::task::spawn_blocking(move || {
                let mut far = Vec::new();
                // In a request's place, behind one, and with nothing that is ever read.
                for (before, along) in [(&b""[..], REQUEST), (LIVES_ON, REQUEST), (b"", b"x")] {
                    let (near, other) = lingering();
                    far.push(other);
                    let got = ask(&path, |mut end| {
                        end.write_all(before).expect("sent");
                        send_along(end, along, near);
                    });
                    assert!(got.matches("page").count() <= usize::from(!before.is_empty()), "{got}");
                    let got = ask(&path, |mut end| end.write_all(REQUEST).expect("sent"));
                    assert!(got.ends_with("page"), "{got}");
                }
                // A connection that was never accepted, when the test ends.
                let (near, other) = lingering();
                far.push(other);
                let waiting = Plain::connect(&path).expect("a listener");
                send_along(&waiting, b"x", near);
                (far, waiting)
            });
            asking.await.expect("no panic")
        });
        drop(runtime);
        assert!(begun.elapsed() < LINGER / 2, "it waited for {:?}", begun.elapsed());
    }
}
