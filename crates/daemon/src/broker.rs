//! Operations that need privileges or the operator's files, done in this process or by a second one.
//!
//! Why: an attacker who takes over the process that reads tenants' frames must gain no access to the host by it.
//! From: OpenSSH's privilege separation (Provos, 2003); `docs/decisions/0013-privileges.md` has the argument.
//! Not here: what the engine's process gives up (`sandbox`).
//! Invariant: the broker opens what the operator's policy file names; a request cannot name anything else.

mod client;
mod message;
mod server;
mod socket;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_control::FleetKeys;
use plimsoll_policy::{Checked, Press, TenantConfig};
use plimsoll_ports::Port;

use crate::dataplane::Whose;
use crate::fleet;
use crate::kernel;
use crate::open::{self, OpenError};
use crate::programs;
use crate::reader::{self, FileReader};
use crate::sampler;

pub(crate) use client::Client;
pub(crate) use message::{Clear, Start};
pub(crate) use server::sources;
pub use server::{BrokerError, serve_broker};

/// The number of a policy: the first one read has 0, and each later one the next number.
pub(crate) type Number = u64;

/// The process that opens ports and files for the engine.
#[derive(Clone, Debug)]
pub(crate) enum Broker {
    /// This process; with a [`FileReader`], other processes read tenants' files for it.
    Here(Option<Arc<dyn FileReader>>),
    /// A broker in a process of its own.
    Process(Arc<Client>),
}

/// Why the policy file was not read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The text of its mistakes.
    Policy(String),
    /// The broker cannot be asked.
    Broker(String),
}

impl Default for Broker {
    fn default() -> Self {
        Self::Here(None)
    }
}

impl Broker {
    /// Reads the policy file.
    pub(crate) fn read(&self, file: &str) -> Result<(Checked, Number), ReadError> {
        match self {
            Self::Here(reader) => match reader::load(file, reader.as_deref()) {
                Ok(checked) => Ok((checked, 0)),
                Err(errors) => Err(ReadError::Policy(errors.render(false))),
            },
            Self::Process(client) => client.read(file),
        }
    }

    /// Tells the broker that this policy is in force, so that it opens no port of another.
    pub(crate) fn in_force(&self, number: Number) {
        if let Self::Process(client) = self {
            client.in_force(number);
        }
    }

    /// Reads the fleet's keys as the policy with this number names them; none where nothing is sealed.
    pub(crate) fn keys(&self, checked: &Checked, number: Number) -> Result<Option<FleetKeys>, String> {
        let Some(overlay) = checked.config.overlay.as_ref().filter(|overlay| overlay.key.is_some()) else {
            return Ok(None);
        };
        match self {
            Self::Here(_) => fleet::read_keys(Some(overlay)).map_err(|why| why.to_string()),
            Self::Process(client) => client.keys(number),
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
            Self::Here(_) => open::open_tenant(checked, tenant),
            Self::Process(client) => client.open_tenant(checked, number, tenant),
        }
    }

    /// Sets on the interface of a tenant's open TAP what the policy with this number states.
    pub(crate) fn configure(
        &self,
        checked: &Checked,
        number: Number,
        tenant: &TenantConfig,
    ) -> Result<(), OpenError> {
        match self {
            Self::Here(_) => open::tenant_wanted(checked, tenant).configure(),
            Self::Process(client) => client.configure(number, tenant),
        }
    }

    /// Opens one of the uplink's ports as the policy with this number has it; none where it has no such port.
    pub(crate) fn open_uplink(
        &self,
        checked: &Checked,
        number: Number,
        whose: &Whose,
    ) -> Option<Result<Port, OpenError>> {
        let wanted = open::uplink_wanted(&checked.config, whose)?;
        Some(match self {
            Self::Here(_) => wanted.open(),
            Self::Process(client) => client.open(&wanted, number, whose),
        })
    }

    /// Opens this queue of the uplink's interface, whose first queue is `first`.
    pub(crate) fn open_next(
        &self,
        checked: &Checked,
        number: Number,
        whose: &Whose,
        (first, queue): (&Port, u32),
    ) -> Option<Result<Port, OpenError>> {
        let Port::AfXdp(first) = first else { return self.open_uplink(checked, number, whose) };
        let wanted = open::uplink_wanted(&checked.config, whose)?;
        Some(match self {
            Self::Here(_) => wanted.open_next(first, queue),
            Self::Process(client) => client.open_next(first, &wanted, (number, whose), queue),
        })
    }

    /// Frames of each tenant that the kernel dropped before they were read; see [`kernel::dropped`].
    pub(crate) fn dropped(&self, checked: &Checked) -> BTreeMap<String, u64> {
        match self {
            Self::Here(_) => kernel::dropped(checked),
            Self::Process(client) => client.dropped(),
        }
    }

    /// Opens the files that tell the CPU time of what this policy watches; the one that bounds it unless `used`.
    pub(crate) fn open_load(&self, press: &Press, number: Number, used: bool) -> io::Result<Vec<File>> {
        let files = if used {
            sampler::files(&press.watch)
        } else {
            sampler::bound(&press.watch).into_iter().collect()
        };
        let open = |(index, file): (u32, PathBuf)| match self {
            Self::Here(_) => sampler::open(&file),
            Self::Process(client) => client.open_load(number, used.then_some(index)),
        };
        (0..).zip(files).map(open).collect()
    }

    /// Opens the module of a tenant's program, as the policy with this number names it.
    pub(crate) fn open_module(&self, checked: &Checked, number: Number, name: &str) -> io::Result<File> {
        match self {
            Self::Here(_) => match programs::with_programs(checked).find(|(tenant, _)| tenant.name == name) {
                Some((_, stated)) => programs::open_module(&stated.module),
                None => Err(io::ErrorKind::NotFound.into()),
            },
            Self::Process(client) => client.open_module(number, name),
        }
    }

    /// Whether there is a broker that has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Process(client) if client.has_ended())
    }
}
