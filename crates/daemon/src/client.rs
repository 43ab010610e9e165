//! Requests to a running daemon.
//!
//! Why: `plimsoll stats`, `top`, `reload` and `explain` are one request each.
//! From: HTTP/1.1 with `Connection: close`, which needs no library: the answer ends with the connection.
//! Not here: the meaning of the answers (`cli`).
//! Invariant: no answer within [`PATIENCE`] is an error, not a wait.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

/// A reload may have to make interfaces; everything else answers in milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens at the socket.
    #[error(
        "no plimsoll answers at {socket}: {source}; start one with `plimsoll run FILE`, or name its socket with `--socket`"
    )]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// This user may not ask.
    #[error(
        "may not ask the plimsoll at {socket}: its owner and group may; run as one of them, with `sudo` say"
    )]
    NotAllowed {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon closed the connection.
    #[error(
        "the plimsoll at {socket} hung up ({source}): too many ask at once, or it is about to end; try again"
    )]
    HungUp {
        /// The socket.
        socket: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The daemon refused.
    #[error("{0}")]
    Refused(String),
    /// The daemon's answer is not understood.
    #[error(
        "{socket} answered what this version does not understand ({what}); are both of the same version?"
    )]
    Strange {
        /// The socket.
        socket: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// A daemon's API socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client for this socket.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// `GET path`, read as JSON.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.json(&self.text("GET", path)?)
    }

    /// `POST path`, read as JSON.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.json(&self.text("POST", path)?)
    }

    /// The body of a successful answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn text(&self, method: &str, path: &str) -> Result<String, ClientError> {
        let answer = self.exchange(method, path);
        let answer = answer.map_err(|source| unanswered(self.socket.clone(), source))?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| self.strange("no header"))?;
        let status: u16 = head
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .ok_or_else(|| self.strange("no status"))?;
        if status == 200 {
            return Ok(body.to_owned());
        }
        let error = serde_json::from_str::<serde_json::Value>(body).ok();
        let why = error.and_then(|error| Some(error.get("error")?.as_str()?.to_owned()));
        Err(ClientError::Refused(why.unwrap_or_else(|| format!("{path}: status {status}"))))
    }

    fn exchange(&self, method: &str, path: &str) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: plimsoll\r\n{length}Connection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn json<T: DeserializeOwned>(&self, body: &str) -> Result<T, ClientError> {
        serde_json::from_str(body).map_err(|error| self.strange(&error.to_string()))
    }

    fn strange(&self, what: &str) -> ClientError {
        ClientError::Strange { socket: self.socket.clone(), what: what.to_owned() }
    }
}

fn unanswered(socket: PathBuf, source: std::io::Error) -> ClientError {
    match source.kind() {
        ErrorKind::PermissionDenied => ClientError::NotAllowed { socket },
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => ClientError::HungUp { socket, source },
        _ => ClientError::Unreachable { socket, source },
    }
}

/// Encodes `text` for use in a query.
#[must_use]
pub fn query(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_keeps_its_meaning() {
        assert_eq!(query("dst=10.0.0.0/8 tcp"), "dst%3D10.0.0.0%2F8%20tcp");
    }

    #[test]
    fn an_absent_daemon_is_said_with_a_way_out() {
        let error = Client::new(Path::new("/nonexistent/api.sock")).text("GET", "/v1/stats");
        let message = error.expect_err("no daemon listens").to_string();
        assert!(message.contains("/nonexistent/api.sock") && message.contains("plimsoll run"), "{message}");
    }
}
