//! A filter of packets: `tenant=shop protocol=tcp dst=10.0.0.0/8`.
//!
//! Why: `explain` is asked in the words that a policy's `match` uses.
//! From: `docs/policy.md`, "match".
//! Not here: the answer (`explain`).
//! Invariant: an empty filter means every packet.

use core::net::{IpAddr, Ipv4Addr};
use core::str::FromStr;

use plimsoll_policy::{Fields, Metadata, Prefix, Tenant, TenantId};
use plimsoll_wire::FlowKey;
use serde::Serialize;

use crate::departures::Departure;

/// Conditions on a packet; those that are absent hold always.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Filter {
    /// Name of the tenant that sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Path of its class, or the last names of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Prefix of its source address.
    #[serde(skip)]
    pub src: Option<Prefix>,
    /// Prefix of its destination address.
    #[serde(skip)]
    pub dst: Option<Prefix>,
    /// IP protocol number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u8>,
    /// Source port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_port: Option<u16>,
    /// Destination port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_port: Option<u16>,
    /// DSCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dscp: Option<u8>,
    /// VLAN identifier; 0 for frames without a tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Metadata of its descriptor: priority, control group, user, application and core.
    #[serde(skip)]
    pub metadata: Metadata,
}

/// A text that is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// A word without `=` that is no protocol's name.
    #[error("`{0}` is not a condition; write `key=value` with one of the keys {KEYS}")]
    NoCondition(String),
    /// No such key.
    #[error("there is no key `{0}`; the keys are {KEYS}")]
    NoKey(String),
    /// No tenant of this name.
    #[error("there is no tenant `{0}`; `plimsoll stats` lists them")]
    NoTenant(String),
    /// What the operator states of the tenants excludes such a packet.
    #[error("{0}")]
    Excluded(String),
    /// The value does not fit its key.
    #[error("`{key}={value}`: not {want}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        want: &'static str,
    },
    /// Several mistakes.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<FilterError>),
}

const KEYS: &str = "tenant, class, src, dst, protocol, src_port, dst_port, dscp, vlan, priority, cgroup, user, app \
                    and core";

impl FromStr for Filter {
    type Err = FilterError;
    /// Reads conditions separated by spaces or commas; `tcp`, `udp`, `icmp` and `sctp` may stand alone.
    fn from_str(text: &str) -> Result<Self, FilterError> {
        let mut filter = Self::default();
        let words = text.split([' ', ',', '\t']).filter(|word| !word.is_empty());
        let mut mistakes: Vec<_> = words.filter_map(|word| filter.add(word).err()).collect();
        match mistakes.len() {
            0 => Ok(filter),
            1 => Err(mistakes.remove(0)),
            _ => Err(FilterError::Several(mistakes)),
        }
    }
}

impl Filter {
    fn add(&mut self, word: &str) -> Result<(), FilterError> {
        let Some((key, value)) = word.split_once('=') else {
            let number = protocol_number(word).ok_or_else(|| FilterError::NoCondition(word.to_owned()))?;
            self.protocol = Some(number);
            return Ok(());
        };
        match key {
            "tenant" => self.tenant = Some(value.to_owned()),
            "class" => self.class = Some(value.to_owned()),
            "src" => self.src = Some(read("src", value, "an address or a prefix such as 10.0.0.0/8")?),
            "dst" => self.dst = Some(read("dst", value, "an address or a prefix such as 10.0.0.0/8")?),
            "protocol" => {
                let named = protocol_number(value).map_or_else(|| value.to_owned(), |n| n.to_string());
                self.protocol = Some(read("protocol", &named, "tcp, udp, icmp, sctp or a number up to 255")?);
            }
            "src_port" => self.src_port = Some(read("src_port", value, "a port number")?),
            "dst_port" => self.dst_port = Some(read("dst_port", value, "a port number")?),
            "dscp" => self.dscp = Some(read("dscp", value, "a number up to 63")?),
            "vlan" => self.vlan = Some(read("vlan", value, "a VLAN identifier up to 4094")?),
            "priority" => self.metadata.priority = Some(read("priority", value, UP_TO_32_BITS)?),
            "cgroup" => self.metadata.cgroup = Some(read("cgroup", value, UP_TO_64_BITS)?),
            "user" => self.metadata.user = Some(read("user", value, UP_TO_32_BITS)?),
            "app" => self.metadata.app = Some(read("app", value, UP_TO_32_BITS)?),
            "core" => self.metadata.core = Some(read("core", value, UP_TO_16_BITS)?),
            _ => return Err(FilterError::NoKey(key.to_owned())),
        }
        Ok(())
    }

    /// Whether the conditions hold for a departure of this tenant, if it is known. The caller compares tenant and class.
    ///
    /// The log has the metadata that the policy looks at; what the operator states of a tenant holds for all its packets.
    #[must_use]
    pub fn holds(&self, departure: &Departure, tenant: Option<&Tenant>) -> bool {
        let said = departure.metadata;
        let metadata = tenant.map_or(said, |tenant| tenant.metadata(said));
        let [src, dst] = [departure.addresses.map(|(src, _)| src), departure.addresses.map(|(_, dst)| dst)];
        agrees(&self.metadata, &metadata)
            && inside(self.src, src)
            && inside(self.dst, dst)
            && self.protocol.is_none_or(|wanted| src.is_some() && wanted == departure.protocol)
            && self.src_port.is_none_or(|wanted| departure.ports.is_some_and(|(src, _)| src == wanted))
            && self.dst_port.is_none_or(|wanted| departure.ports.is_some_and(|(_, dst)| dst == wanted))
            && self.dscp.is_none_or(|wanted| src.is_some() && wanted == departure.dscp)
            && self.vlan.is_none_or(|wanted| wanted == departure.vlan)
    }

    /// Whether a flow of this tenant has such packets, as far as its headers tell. Without a tenant the flow is any tenant's.
    #[must_use]
    pub fn may_be_of(&self, flow: &FlowKey, tenant: Option<&str>) -> bool {
        let [src, dst] = [flow.addresses().map(|(src, _)| src), flow.addresses().map(|(_, dst)| dst)];
        let [src_port, dst_port] = [flow.ports().map(|(src, _)| src), flow.ports().map(|(_, dst)| dst)];
        let named = self.tenant.as_deref().zip(tenant).is_none_or(|(wanted, tenant)| wanted == tenant);
        named
            && inside(self.src, src)
            && inside(self.dst, dst)
            && self.protocol.is_none_or(|wanted| flow.protocol() == Some(wanted))
            && self.src_port.is_none_or(|wanted| src_port == Some(wanted))
            && self.dst_port.is_none_or(|wanted| dst_port == Some(wanted))
    }

    /// The fields of such a packet, for classification: fields that the filter leaves open are absent, or zero.
    #[must_use]
    pub fn fields(&self, tenant: Option<TenantId>) -> Fields {
        let [src, dst] = [self.src, self.dst].map(|prefix| prefix.map(|prefix| prefix.addr));
        let zero = |other: IpAddr| match other {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::from(core::net::Ipv6Addr::UNSPECIFIED),
        };
        let any_ip = self.protocol.is_some()
            || self.src_port.is_some()
            || self.dst_port.is_some()
            || self.dscp.is_some();
        let addresses = match (src, dst) {
            (Some(src), Some(dst)) => Some((src, dst)),
            (Some(src), None) => Some((src, zero(src))),
            (None, Some(dst)) => Some((zero(dst), dst)),
            (None, None) => any_ip.then_some((Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into())),
        };
        let ports = match (self.src_port, self.dst_port) {
            (None, None) => None,
            (src, dst) => Some((src.unwrap_or(0), dst.unwrap_or(0))),
        };
        Fields {
            tenant,
            addresses,
            protocol: self.protocol,
            ports,
            dscp: self.dscp.unwrap_or(0),
            vlan: self.vlan.unwrap_or(0),
            metadata: self.metadata,
        }
    }
}

const UP_TO_16_BITS: &str = "a whole number from 0 to 65535";
const UP_TO_32_BITS: &str = "a whole number from 0 to 4294967295";
const UP_TO_64_BITS: &str = "a whole number from 0 to 18446744073709551615";

/// Number of a protocol that operators name.
#[must_use]
pub fn protocol_number(name: &str) -> Option<u8> {
    match name {
        "icmp" => Some(1),
        "tcp" => Some(6),
        "udp" => Some(17),
        "icmpv6" => Some(58),
        "sctp" => Some(132),
        _ => None,
    }
}

/// Whether a packet has every field that is wanted.
fn agrees(wanted: &Metadata, has: &Metadata) -> bool {
    fn field<T: PartialEq>(wanted: Option<T>, has: Option<T>) -> bool {
        wanted.is_none() || wanted == has
    }
    field(wanted.priority, has.priority)
        && field(wanted.cgroup, has.cgroup)
        && field(wanted.user, has.user)
        && field(wanted.app, has.app)
        && field(wanted.core, has.core)
}

fn inside(wanted: Option<Prefix>, addr: Option<IpAddr>) -> bool {
    wanted.is_none_or(|prefix| addr.is_some_and(|addr| prefix.contains(addr)))
}

fn read<T: FromStr>(key: &'static str, value: &str, want: &'static str) -> Result<T, FilterError> {
    value.parse().map_err(|_| FilterError::BadValue { key, value: value.to_owned(), want })
}

#[cfg(test)]
mod tests {
    use plimsoll_policy::NodeId;
    use plimsoll_units::{Nanos, Span};

    use super::*;
    use crate::departures::Passage;

    #[test]
    fn reads_the_words_of_a_match() {
        let filter: Filter = "tenant=shop tcp,dst=10.0.0.0/8 dst_port=443".parse().expect("a filter");
        assert_eq!(filter.tenant.as_deref(), Some("shop"));
        assert_eq!((filter.protocol, filter.dst_port), (Some(6), Some(443)));
        let fields = filter.fields(None);
        assert_eq!(fields.addresses.map(|(_, dst)| dst.to_string()).as_deref(), Some("10.0.0.0"));
    }

    #[test]
    fn metadata_decides_the_class_and_is_compared_with_what_left() {
        let filter: Filter = "priority=6 cgroup=9000000000 user=1000 app=7,core=3".parse().expect("a filter");
        let metadata = Metadata {
            priority: Some(6),
            cgroup: Some(9_000_000_000),
            user: Some(1_000),
            app: Some(7),
            core: Some(3),
        };
        assert_eq!(filter.fields(None), Fields { metadata, ..Fields::default() });
        let passage = Passage {
            arrived: Nanos::ZERO,
            head: Nanos::ZERO,
            departed: Nanos::ZERO,
            limited: Span::ZERO,
            limited_by: None,
            class: NodeId(0),
            generation: 0,
            lane: 0,
            len: 64,
            frames: 1,
        };
        let departure = Departure {
            passage,
            addresses: None,
            ports: None,
            protocol: 0,
            dscp: 0,
            vlan: 0,
            metadata: Metadata::default(),
        };
        assert!(Filter::default().holds(&departure, None) && !filter.holds(&departure, None));
        let said = Departure { metadata, ..departure };
        assert!(Filter::default().holds(&said, None) && filter.holds(&said, None));
        let other = Departure { metadata: Metadata { app: Some(8), ..metadata }, ..departure };
        assert!(!filter.holds(&other, None));
        // What the operator states takes the place of what the sender says.
        let policy = "{uplink: {port: memory, rate: 1Gbps}, tenants: {a: {port: memory, user: 1000}, b: {port: memory, user: 7}}}";
        let program = plimsoll_policy::check_str("p.yaml", policy).expect("legal").program;
        let user: Filter = "user=1000".parse().expect("a filter");
        assert!(
            user.holds(&departure, Some(&program.tenants[0]))
                && !user.holds(&said, Some(&program.tenants[1]))
        );
        let error = "user=root".parse::<Filter>().expect_err("a name").to_string();
        assert_eq!(error, "`user=root`: not a whole number from 0 to 4294967295");
    }

    #[test]
    fn says_what_would_be_right() {
        let error = |text: &str| text.parse::<Filter>().expect_err("wrong").to_string();
        assert!(error("port=80").contains("src_port, dst_port"), "{}", error("port=80"));
        assert!(error("dscp=high").contains("a number up to 63"));
        assert!(error("everything").contains("key=value"));
    }
}
