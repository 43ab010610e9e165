//! The calls of the protocol.
//!
//! Why: Docker tells a driver of networks, of endpoints in them, and of containers that join and leave by an endpoint.
//! From: libnetwork's `drivers/remote/api`.
//! Not here: what an endpoint's coming and going does (`endpoint`).
//! Invariant: a call that Docker makes only where a cluster or a published port is concerned succeeds and does nothing.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::endpoint::Endpoints;
use super::records::{self, Endpoint, Network, Records};
use crate::args::DockerPlugin;
use crate::attachment::keys::or_null;
use crate::attachment::{Kind, Trouble};

/// What becomes of a call.
#[derive(Debug)]
pub(super) enum Answer {
    Done(Value),
    /// No call has this name.
    Unknown,
    /// The call is not understood.
    Senseless(String),
    Failed(Trouble),
}

/// The plugin.
#[derive(Debug)]
pub(super) struct Plugin {
    endpoints: Endpoints,
}

/// What calls state; each states a part of it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Stated {
    #[serde(rename = "NetworkID")]
    network: String,
    #[serde(rename = "EndpointID")]
    endpoint: String,
    #[serde(deserialize_with = "or_null")]
    options: Map<String, Value>,
    #[serde(rename = "IPv4Data", deserialize_with = "or_null")]
    ipv4: Vec<Pool>,
    #[serde(rename = "IPv6Data", deserialize_with = "or_null")]
    ipv6: Vec<Pool>,
    #[serde(deserialize_with = "or_null")]
    interface: Interface,
}

/// A subnet, with its gateway as `10.0.0.1/24`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Pool {
    #[serde(deserialize_with = "or_null")]
    gateway: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Interface {
    #[serde(deserialize_with = "or_null")]
    address: String,
    #[serde(rename = "AddressIPv6", deserialize_with = "or_null")]
    address_ipv6: String,
    #[serde(deserialize_with = "or_null")]
    mac_address: String,
}

impl Plugin {
    pub(super) fn new(args: &DockerPlugin) -> Result<Self, Trouble> {
        let records = Records::open(&args.state)?;
        Ok(Self { endpoints: Endpoints::new(records, &args.tenants, &args.socket) })
    }

    /// Carries out the call of this path.
    pub(super) fn call(&mut self, path: &str, body: &[u8]) -> Answer {
        let done = match path {
            "/Plugin.Activate" => Ok(json!({ "Implements": ["NetworkDriver"] })),
            "/NetworkDriver.GetCapabilities" => Ok(json!({ "Scope": "local" })),
            "/NetworkDriver.CreateNetwork" => self.with(body, Self::create_network),
            "/NetworkDriver.DeleteNetwork" => self.with(body, |plugin, stated: &Stated| {
                plugin.endpoints.delete_network(id(&stated.network, "NetworkID")?).map_err(Answer::Failed)
            }),
            "/NetworkDriver.CreateEndpoint" => self.with(body, Self::create_endpoint),
            "/NetworkDriver.EndpointOperInfo" => self.with(body, |plugin, stated| {
                plugin.endpoints.info(id(&stated.endpoint, "EndpointID")?).map_err(Answer::Failed)
            }),
            "/NetworkDriver.DeleteEndpoint" => self.with(body, |plugin, stated| {
                plugin.endpoints.delete(id(&stated.endpoint, "EndpointID")?).map_err(Answer::Failed)
            }),
            "/NetworkDriver.Join" => self.with(body, |plugin, stated| {
                plugin.endpoints.join(id(&stated.endpoint, "EndpointID")?).map_err(Answer::Failed)
            }),
            "/NetworkDriver.Leave" => self.with(body, |plugin, stated| {
                plugin.endpoints.leave(id(&stated.endpoint, "EndpointID")?).map_err(Answer::Failed)
            }),
            "/NetworkDriver.AllocateNetwork" => Ok(json!({ "Options": {} })),
            "/NetworkDriver.FreeNetwork"
            | "/NetworkDriver.DiscoverNew"
            | "/NetworkDriver.DiscoverDelete"
            | "/NetworkDriver.ProgramExternalConnectivity"
            | "/NetworkDriver.RevokeExternalConnectivity" => Ok(json!({})),
            _ => return Answer::Unknown,
        };
        done.map_or_else(|answer| answer, Answer::Done)
    }

    fn with(
        &mut self,
        body: &[u8],
        call: impl FnOnce(&mut Self, &Stated) -> Result<Value, Answer>,
    ) -> Result<Value, Answer> {
        call(self, &read(body)?)
    }

    fn create_network(&mut self, stated: &Stated) -> Result<Value, Answer> {
        let (label, mut options) = ("com.docker.network.generic", stated.options.clone());
        let given = options.remove(label).unwrap_or_default();
        let given = given.as_object().cloned().unwrap_or_default();
        let internal = options.get("com.docker.network.internal").and_then(Value::as_bool).unwrap_or(false);
        let gateways = [&stated.ipv4, &stated.ipv6].map(|pools| gateway(pools));
        let [v4, v6] = gateways;
        let gateways = [v4?, v6?].into_iter().flatten().filter(|_| !internal).collect();
        let network = Network { gateways, ..Network::read(&given).map_err(Answer::Failed)? };
        records::judge(&network.keys).map_err(Answer::Failed)?;
        self.endpoints.create_network(id(&stated.network, "NetworkID")?, &network).map_err(Answer::Failed)
    }

    fn create_endpoint(&mut self, stated: &Stated) -> Result<Value, Answer> {
        let (network, id) = (id(&stated.network, "NetworkID")?, id(&stated.endpoint, "EndpointID")?);
        let Interface { address, address_ipv6, mac_address } = &stated.interface;
        let addresses = [address, address_ipv6].into_iter().filter(|address| !address.is_empty());
        let addresses: Result<Vec<String>, Answer> = addresses.map(|address| alone(address)).collect();
        let mac = match mac_address.as_str() {
            "" => None,
            stated if is_mac(stated) => Some(stated.to_ascii_lowercase()),
            wrong => return Err(Answer::Senseless(format!("`{wrong}` is no hardware address"))),
        };
        let endpoint = Endpoint::read(network, mac.as_deref(), addresses?, &stated.options, id);
        let endpoint = endpoint.map_err(Answer::Failed)?;
        let chosen = endpoint.mac.clone();
        self.endpoints.create(id, endpoint).map_err(Answer::Failed)?;
        // Docker takes no answer for what it has stated itself.
        Ok(json!({ "Interface": if mac.is_some() { json!({}) } else { json!({ "MacAddress": chosen }) } }))
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Answer> {
    serde_json::from_slice(body)
        .map_err(|error| Answer::Senseless(format!("the call is not understood: {error}")))
}

/// An id of Docker's, which is a part of files' names.
fn id<'s>(stated: &'s str, key: &str) -> Result<&'s str, Answer> {
    if records::is_id(stated) {
        return Ok(stated);
    }
    Err(Answer::Senseless(format!("{key} is no id of Docker's: 12 to 64 letters and digits")))
}

/// The gateway of the only subnet of a family.
fn gateway(pools: &[Pool]) -> Result<Option<String>, Answer> {
    match pools {
        [] => Ok(None),
        [pool] if pool.gateway.is_empty() => Ok(None),
        [pool] => alone(&pool.gateway).map(Some),
        _ => Err(Answer::Failed(
            Trouble::new(Kind::Config, "the network has several subnets of one family")
                .details("make a network for each: a tenant has one gateway"),
        )),
    }
}

/// An address without the length of its network.
fn alone(address: &str) -> Result<String, Answer> {
    let alone = address.split('/').next().unwrap_or_default();
    match alone.parse::<std::net::IpAddr>() {
        Ok(address) => Ok(address.to_string()),
        Err(_) => Err(Answer::Senseless(format!("`{address}` is no address"))),
    }
}

fn is_mac(text: &str) -> bool {
    let bytes: Vec<_> = text.split(':').collect();
    bytes.len() == 6
        && bytes.iter().all(|byte| byte.len() == 2 && byte.bytes().all(|digit| digit.is_ascii_hexdigit()))
}
