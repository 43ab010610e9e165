//! What takes privilege or the operator's files, done here or by a process of its own.
//!
//! Why: whoever takes over the process that reads tenants' frames shall gain nothing of the host by it.
//! From: OpenSSH's privilege separation (Provos, 2003); `docs/decisions/0013-privileges.md` has the argument.
//! Not here: what the engine's process gives up (`sandbox`).
//! Invariant: the broker does for the engine what the operator's policy file says, and nothing that a request says.

mod client;
mod message;
mod server;
mod socket;

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_policy::Checked;
use plimsoll_ports::Port;

use crate::kernel;
use crate::open::{self, OpenError};
use crate::reader::{self, FileReader};

pub(crate) use client::Client;
pub(crate) use message::{Clear, Start};
pub(crate) use server::sources;
pub use server::{BrokerError, serve_broker};

/// Which of the policies that were read since the start.
pub(crate) type Number = u64;

/// Who opens what the policy names.
#[derive(Clone, Debug)]
pub(crate) enum Broker {
    /// This process, which has tenants' files read by others if it is told by whom.
    Here(Option<Arc<dyn FileReader>>),
    /// The broker's.
    Process(Arc<Client>),
}

impl Default for Broker {
    fn default() -> Self {
        Self::Here(None)
    }
}

impl Broker {
    /// Reads the policy file; the mistakes in it as people read them.
    pub(crate) fn read(&self, file: &str) -> Result<(Checked, Number), String> {
        match self {
            Self::Here(reader) => match reader::load(file, reader.as_deref()) {
                Ok(checked) => Ok((checked, 0)),
                Err(errors) => Err(errors.render(false)),
            },
            Self::Process(client) => client.read(file),
        }
    }

    /// The policy with this number is in force: no other is opened from any more.
    pub(crate) fn in_force(&self, number: Number) {
        if let Self::Process(client) = self {
            client.in_force(number);
        }
    }

    /// Opens a tenant's port as the policy with this number has it.
    pub(crate) fn open_tenant(
        &self,
        checked: &Checked,
        number: Number,
        name: &str,
    ) -> Result<Port, OpenError> {
        let tenant = checked.config.tenants.iter().find(|tenant| tenant.name == name);
        let tenant = tenant.expect("the policy's own tenant");
        match self {
            Self::Here(_) => open::open_tenant(checked, name, &tenant.port),
            Self::Process(client) => client.open_tenant(checked, number, tenant),
        }
    }

    /// Opens the uplink as the policy with this number has it.
    pub(crate) fn open_uplink(&self, checked: &Checked, number: Number) -> Result<Port, OpenError> {
        match self {
            Self::Here(_) => open::open_uplink(&checked.config),
            Self::Process(client) => client.open_uplink(checked, number),
        }
    }

    /// What the kernel dropped of each tenant's frames before they were read; see [`kernel::dropped`].
    pub(crate) fn dropped(&self, checked: &Checked) -> BTreeMap<String, u64> {
        match self {
            Self::Here(_) => kernel::dropped(checked),
            Self::Process(client) => client.dropped(),
        }
    }

    /// Whether there is a broker that has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Process(client) if client.has_ended())
    }
}
