//! The daemon that serves the tenants.
//!
//! Why: a tenant that was written is in force once the daemon says so.
//! From: `/v1/reload` and `/v1/stats` of its API.
//! Not here: the tenants' files.
//! Invariant: a tenant that the daemon does not have is a failure, also where it took the file without a word.

use std::path::Path;

use plimsoll_daemon::{Client, ClientError, Stats};

use super::{Kind, Maker, Trouble};

/// The daemon, by its API.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    client: Client,
    maker: Maker,
}

impl Server {
    pub(crate) fn at(socket: &Path, maker: Maker) -> Self {
        Self { client: Client::new(socket), maker }
    }

    /// Whether it answers.
    pub(crate) fn health(&self) -> Result<(), Trouble> {
        self.client.text("GET", "/v1/health").map(drop).map_err(unreachable)
    }

    /// Its counters.
    pub(crate) fn stats(&self) -> Result<Stats, Trouble> {
        self.client.get("/v1/stats").map_err(unreachable)
    }

    /// Tenants whose ports it has; none if it does not answer.
    pub(crate) fn tenants_up(&self) -> Vec<String> {
        let tenants = self.stats().map(|stats| stats.tenants).unwrap_or_default();
        tenants.into_iter().filter(|(_, port)| port.port.is_some()).map(|(name, _)| name).collect()
    }

    pub(crate) fn reload(&self) -> Result<(), Trouble> {
        self.client.text("POST", "/v1/reload").map(drop).map_err(unreachable)
    }

    /// Has the daemon take removed tenants away. If it does not, because it does not run or its operator is changing the policy, the
    /// next reload or start does.
    pub(crate) fn forget(&self) {
        if let Err(trouble) = self.reload() {
            eprintln!("{}: the tenant goes with the next reload: {}", self.maker.program, trouble.message);
        }
    }
}

fn unreachable(error: ClientError) -> Trouble {
    match error {
        ClientError::Refused(why) => {
            Trouble::new(Kind::Refused, "the daemon refused the policy with this tenant").details(why)
        }
        ClientError::Unreachable { .. } | ClientError::HungUp { .. } => {
            Trouble::new(Kind::TryAgain, "the daemon does not answer").details(error.to_string())
        }
        other => Trouble::new(Kind::Io, other.to_string()),
    }
}
