//! Endpoints: how a container becomes a tenant and ceases to be one.
//!
//! Why: Docker makes an endpoint, joins a container to it, and may be ended between any two calls.
//! From: the records, and the tenants' files, which tell which endpoints have joined.
//! Not here: the protocol (`calls`).
//! Invariant: an endpoint that has joined has a veth pair and a tenant in force; one that Docker has forgotten loses both when its
//! address is given to another, or after [`IDLE`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::records::{self, Endpoint, Network, Records};
use super::veth::{self, Veth};
use crate::attachment::{Attachment, DOCKER, Folder, Kind, Server, Trouble, keys, veth_in};

/// Between the making of an endpoint and the start of its container there are milliseconds.
const IDLE: Duration = Duration::from_mins(10);

/// The endpoints of all networks.
#[derive(Debug)]
pub(super) struct Endpoints {
    records: Records,
    /// The folder that the policy includes.
    tenants: PathBuf,
    server: Server,
    /// Since when this process has known an endpoint.
    known: BTreeMap<String, Instant>,
}

impl Endpoints {
    pub(super) fn new(records: Records, tenants: &Path, socket: &Path) -> Self {
        let known = records.endpoints().into_iter().map(|(id, _)| (id, Instant::now())).collect();
        Self { records, tenants: tenants.to_owned(), server: Server::at(socket, DOCKER), known }
    }

    pub(super) fn create_network(&self, id: &str, network: &Network) -> Result<Value, Trouble> {
        self.records.keep_network(id, network)?;
        Ok(json!({}))
    }

    pub(super) fn delete_network(&mut self, id: &str) -> Result<Value, Trouble> {
        for (endpoint, record) in self.records.endpoints() {
            if record.network == id {
                self.delete(&endpoint)?;
            }
        }
        self.records.forget_network(id)?;
        Ok(json!({}))
    }

    pub(super) fn create(&mut self, id: &str, endpoint: Endpoint) -> Result<(), Trouble> {
        let Some(network) = self.records.network(&endpoint.network)? else {
            let message = format!("plimsoll knows no network {}", endpoint.network);
            return Err(Trouble::new(Kind::Config, message).details("make it anew: `docker network create`"));
        };
        records::judge(&stated(&endpoint, &network))?;
        for stale in self.stale(id, &endpoint)? {
            self.delete(&stale)?;
        }
        self.known.insert(id.to_owned(), Instant::now());
        self.records.keep_endpoint(id, &endpoint)
    }

    /// Endpoints that Docker has forgotten: it gives their address to another one, or no container has come for long.
    fn stale(&self, id: &str, new: &Endpoint) -> Result<Vec<String>, Trouble> {
        let links = veth::names()?;
        let is_idle = |id: &str| {
            let veth = Veth::of(id);
            let has_container = links.contains(&veth.host) && !links.contains(&veth.inside);
            !has_container && self.known.get(id).is_none_or(|since| since.elapsed() >= IDLE)
        };
        let has_address = |old: &Endpoint| {
            old.network == new.network && old.addresses.iter().any(|address| new.addresses.contains(address))
        };
        let others = self.records.endpoints().into_iter().filter(|(other, _)| other != id);
        Ok(others.filter(|(id, old)| has_address(old) || is_idle(id)).map(|(id, _)| id).collect())
    }

    /// Makes the endpoint's interface, and its tenant. What an earlier call has left is made anew.
    pub(super) fn join(&mut self, id: &str) -> Result<Value, Trouble> {
        let unknown = || {
            Trouble::new(Kind::Config, format!("plimsoll knows no endpoint {id}"))
                .details("start the container anew: `docker stop`, `docker start`")
        };
        let endpoint = self.records.endpoint(id)?.ok_or_else(unknown)?;
        let network = self.records.network(&endpoint.network)?.ok_or_else(unknown)?;
        let (attachment, veth) = (attachment(id, &endpoint, &network), Veth::of(id));
        self.leave(id)?;
        let joined =
            veth.make(&endpoint, network.mtu).and_then(|()| self.put_in_force(&attachment, &veth, &endpoint));
        if let Err(trouble) = joined {
            // The first failure is the one to report.
            let _ = self.leave(id);
            let _ = veth.remove();
            return Err(trouble);
        }
        let gateway = |is_v6: bool| network.gateways.iter().find(|gateway| gateway.contains(':') == is_v6);
        Ok(json!({
            "InterfaceName": { "SrcName": veth.inside, "DstPrefix": "eth" },
            "Gateway": gateway(false).map_or("", String::as_str),
            "GatewayIPv6": gateway(true).map_or("", String::as_str),
            // Docker would else connect a container without a gateway to a bridge of its own, past the engine.
            "DisableGatewayService": true,
        }))
    }

    fn put_in_force(&self, attachment: &Attachment, veth: &Veth, endpoint: &Endpoint) -> Result<(), Trouble> {
        let folder = Folder::lock(&self.tenants)?;
        let links = veth::names()?;
        folder.sweep(DOCKER, &self.server.tenants_up(), |text| {
            veth_in(text).is_some_and(|host| !links.iter().any(|link| link == host))
        });
        let addresses: Vec<&String> = [&endpoint.mac].into_iter().chain(&endpoint.addresses).collect();
        let stated = json!({ "port": { "af_packet": veth.host }, "addresses": addresses });
        folder.write(attachment, &attachment.text(&[("network", &endpoint.network)], &stated))?;
        self.server.take_in(attachment, &self.tenants)
    }

    /// Takes the tenant away. Its interface stays: Docker takes it out of the container next.
    pub(super) fn leave(&mut self, id: &str) -> Result<Value, Trouble> {
        if self.tenants.exists() {
            let attachment = Attachment::of(DOCKER, id.to_owned());
            let removed = Folder::lock(&self.tenants)?.remove(&attachment)?;
            // An earlier call may have been ended between the file and the reload.
            if removed || self.server.has(&attachment) {
                self.server.forget();
            }
        }
        Ok(json!({}))
    }

    pub(super) fn delete(&mut self, id: &str) -> Result<Value, Trouble> {
        self.leave(id)?;
        Veth::of(id).remove()?;
        self.known.remove(id);
        self.records.forget_endpoint(id)?;
        Ok(json!({}))
    }

    /// What `docker` shows of an endpoint where it asks.
    pub(super) fn info(&self, id: &str) -> Result<Value, Trouble> {
        let Some(endpoint) = self.records.endpoint(id)? else { return Ok(json!({ "Value": {} })) };
        let network = self.records.network(&endpoint.network)?.unwrap_or_default();
        let (tenant, veth) = (attachment(id, &endpoint, &network), Veth::of(id));
        Ok(json!({ "Value": { "plimsoll.tenant": tenant.tenant(), "plimsoll.port": veth.host } }))
    }
}

/// The tenant of an endpoint. What the endpoint states replaces what its network states.
fn attachment(id: &str, endpoint: &Endpoint, network: &Network) -> Attachment {
    Attachment::new(DOCKER, id.to_owned(), &endpoint.name, stated(endpoint, network))
}

fn stated(endpoint: &Endpoint, network: &Network) -> Map<String, Value> {
    let mut keys = network.keys.clone();
    keys::add(&mut keys, endpoint.keys.clone());
    keys
}
