//! The daemon that serves the tenants.
//!
//! Why: a tenant that was written is in force once the daemon says so.
//! From: `/v1/reload` and `/v1/stats` of its API.
//! Not here: the tenants' files.
//! Invariant: a tenant that the daemon does not have is a failure, also where it took the file without a word.

use std::path::Path;

use plimsoll_daemon::{Client, ClientError, Reloaded, Stats};

use super::{Attachment, Kind, Maker, Trouble};

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

    /// Whether it has the attachment's tenant, with its port.
    pub(crate) fn has(&self, attachment: &Attachment) -> bool {
        self.tenants_up().iter().any(|tenant| attachment.is_tenant(tenant))
    }

    /// Has it take in a tenant whose file has been written to `folder`. Its warnings about the tenant, such as of an address that another
    /// one has, go to standard error.
    pub(crate) fn take_in(&self, attachment: &Attachment, folder: &Path) -> Result<(), Trouble> {
        let warnings = self.reload()?;
        about(&warnings, attachment.tenant())
            .for_each(|warning| eprintln!("{}: {warning}", self.maker.program));
        if self.has(attachment) {
            return Ok(());
        }
        let message = format!("the daemon's policy does not include {}", folder.display());
        Err(Trouble::new(Kind::Config, message)
            .details("state `include` there, or its folder where containers are attached (`tenants`)"))
    }

    fn reload(&self) -> Result<String, Trouble> {
        let reloaded: Result<Reloaded, _> = self.client.post("/v1/reload");
        reloaded.map(|reloaded| reloaded.warnings).map_err(unreachable)
    }

    /// Has the daemon take removed tenants away. If it does not, because it does not run or its operator is changing the policy, the
    /// next reload or start does.
    pub(crate) fn forget(&self) {
        if let Err(trouble) = self.reload() {
            eprintln!("{}: the tenant goes with the next reload: {}", self.maker.program, trouble.message);
        }
    }
}

/// Those of the daemon's warnings that name a tenant.
fn about<'w>(warnings: &'w str, tenant: &'w str) -> impl Iterator<Item = &'w str> {
    let each = warnings.split("warning: ").map(str::trim);
    each.filter(move |warning| warning.contains(&format!("`{tenant}`")))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_warnings_about_the_tenant_are_passed_on() {
        let warnings = "warning: rule `name-clash`\n\n 10.0.0.1 is `b-1`'s and `a-1`'s\n\nwarning: rule `other`\n\n`c-1`\n";
        assert_eq!(
            about(warnings, "a-1").collect::<Vec<_>>(),
            ["rule `name-clash`\n\n 10.0.0.1 is `b-1`'s and `a-1`'s"]
        );
        assert_eq!(about(warnings, "a").count(), 0);
    }
}
