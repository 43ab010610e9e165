//! The plugin's answers: results and refusals, in the form of each version.
//!
//! Why: a runtime reads an answer by the version that its configuration states.
//! From: CNI 1.1, "Result types" and "Errors".
//! Not here: what is done.
//! Invariant: every refusal has a code, a message and, where it helps, what to do.

use serde_json::{Value, json};

use super::config::{Call, Network};
use super::device::Device;
use super::ipam::Given;
use crate::attachment::{Kind, Trouble};

/// Why a call failed, as numbers that runtimes know; from 100 on they are this plugin's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Version = 1,
    Unknown = 3,
    Environment = 4,
    Io = 5,
    Decode = 6,
    Config = 7,
    TryAgain = 11,
    NotAvailable = 50,
    /// The daemon refused the tenant.
    Refused = 100,
    /// A part of an attachment is missing.
    Missing = 101,
    /// The IPAM plugin failed in a way of its own.
    Ipam = 102,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub code: Code,
    pub message: String,
    pub details: String,
    /// What another plugin answered, which is passed on as it is.
    pub passed_on: Option<Value>,
}

impl Refusal {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: String::new(), passed_on: None }
    }

    pub(super) fn details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    pub(super) fn json(self, version: String) -> Value {
        let Self { code, message, details, passed_on } = self;
        passed_on.unwrap_or_else(
            || json!({ "cniVersion": version, "code": code as u32, "msg": message, "details": details }),
        )
    }
}

impl From<Trouble> for Refusal {
    fn from(trouble: Trouble) -> Self {
        let code = match trouble.kind {
            Kind::Io => Code::Io,
            Kind::Config => Code::Config,
            Kind::TryAgain => Code::TryAgain,
            Kind::Refused => Code::Refused,
        };
        Self::new(code, trouble.message).details(trouble.details)
    }
}

/// The result of ADD.
pub(super) fn added(network: &Network, call: &Call, device: &Device, given: &Given) -> Value {
    let mut interface = json!({ "name": call.interface, "mac": device.mac, "sandbox": call.netns });
    if network.is_from([1, 1]) {
        interface["mtu"] = device.mtu.into();
    }
    let ip = |found: &super::ipam::Address| {
        let mut ip = json!({ "address": found.address, "interface": 0 });
        if let Some(gateway) = &found.gateway {
            ip["gateway"] = gateway.as_str().into();
        }
        if !network.is_from([1, 0]) {
            ip["version"] = if found.address.contains(':') { "6" } else { "4" }.into();
        }
        ip
    };
    json!({
        "cniVersion": network.version,
        "interfaces": [interface],
        "ips": given.ips.iter().map(ip).collect::<Vec<_>>(),
        "routes": given.routes,
        "dns": given.dns,
    })
}
