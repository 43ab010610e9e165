//! A packet written as a filter: `tenant=shop dst=10.0.0.1 dst_port=80 protocol=tcp`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::program::{Fields, Program, TenantId};
use crate::read::names;
use plimsoll_document::nearest;

/// A packet, as far as an operator describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The fields that classification looks at; those that the filter leaves out are absent or zero.
    pub fields: Fields,
}

/// A text that describes no packet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.lines())]
pub struct FilterError {
    mistakes: Vec<Mistake>,
}

/// A part of a filter, and why it is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mistake {
    part: String,
    why: String,
}

impl FilterError {
    fn of(part: &str, why: String) -> Self {
        Self { mistakes: vec![Mistake { part: part.to_owned(), why }] }
    }

    /// One line for each mistake.
    fn lines(&self) -> String {
        let lines: Vec<String> =
            self.mistakes.iter().map(|Mistake { part, why }| format!("`{part}`: {why}")).collect();
        lines.join("\n")
    }
}

const KEYS: [&str; 13] = [
    "tenant", "src", "dst", "protocol", "src_port", "dst_port", "dscp", "vlan", "priority", "cgroup", "user",
    "app", "core",
];

impl Filter {
    /// Reads `key=value` pairs between spaces or commas, with the keys of `match:`.
    ///
    /// ```
    /// # let policy = "{uplink: {port: memory, rate: 1Gbps}, tenants: {shop: {port: memory}}}";
    /// # let program = plimsoll_policy::check_str("p.yaml", policy).expect("legal").program;
    /// let filter = plimsoll_policy::Filter::parse(&program, "tenant=shop dst=10.0.0.1 dst_port=80")?;
    /// assert_eq!(filter.fields.ports, Some((0, 80)));
    /// # Ok::<(), plimsoll_policy::FilterError>(())
    /// ```
    pub fn parse(program: &Program, text: &str) -> Result<Self, FilterError> {
        let mut draft = Draft::default();
        let mut mistakes = Vec::new();
        for part in text.split([' ', ',', '\t', '\n']).filter(|part| !part.is_empty()) {
            let read = match part.split_once('=') {
                Some((key, value)) => draft.set(program, key.trim(), value.trim()),
                None => Err("write `key=value`, as in `dst_port=80`".to_owned()),
            };
            mistakes.extend(read.err().map(|why| Mistake { part: part.to_owned(), why }));
        }
        if !mistakes.is_empty() {
            return Err(FilterError { mistakes });
        }
        draft.finish(program).map_err(|why| FilterError::of(text.trim(), why))
    }
}

#[derive(Default)]
struct Draft {
    fields: Fields,
    src: Option<IpAddr>,
    dst: Option<IpAddr>,
    src_port: Option<u16>,
    dst_port: Option<u16>,
    seen: Vec<String>,
}

impl Draft {
    fn set(&mut self, program: &Program, key: &str, value: &str) -> Result<(), String> {
        if self.seen.iter().any(|seen| seen == key) {
            return Err(format!("`{key}` is there twice: one packet has one"));
        }
        self.seen.push(key.to_owned());
        let metadata = &mut self.fields.metadata;
        match key {
            "tenant" => self.fields.tenant = Some(tenant(program, value)?),
            "src" => self.src = Some(address(value)?),
            "dst" => self.dst = Some(address(value)?),
            "protocol" => {
                let wanted = "write `tcp`, `udp`, `icmp` or a number from 0 to 255";
                self.fields.protocol = Some(names::protocol(value).ok_or(wanted)?);
            }
            "src_port" => self.src_port = Some(number(value, u16::MAX)?),
            "dst_port" => self.dst_port = Some(number(value, u16::MAX)?),
            "dscp" => {
                self.fields.dscp = names::code_point(value).ok_or("write 0 to 63 or a name such as `ef`")?
            }
            "vlan" => {
                let vlan = number(value, 4_094_u16)?;
                self.fields.vlan =
                    Some(vlan).filter(|vlan| *vlan < 4_095).ok_or("write 1 to 4094, or 0 without a tag")?;
            }
            "priority" => metadata.priority = Some(number(value, u32::MAX)?),
            "cgroup" => metadata.cgroup = Some(number(value, u64::MAX)?),
            "user" => metadata.user = Some(number(value, u32::MAX)?),
            "app" => metadata.app = Some(number(value, u32::MAX)?),
            "core" => metadata.core = Some(number(value, u16::MAX)?),
            "class" => {
                let other = "name other fields, or ask without `--policy`";
                return Err(format!(
                    "only a running daemon knows the class of packets that have left; {other}"
                ));
            }
            _ => {
                let keys = KEYS.join(", ");
                return Err(match nearest(key, KEYS) {
                    Some(near) => {
                        format!("there is no key `{key}`; did you mean `{near}`? The keys are {keys}")
                    }
                    None => format!("there is no key `{key}`; the keys are {keys}"),
                });
            }
        }
        Ok(())
    }

    fn finish(mut self, program: &Program) -> Result<Filter, String> {
        let any = |like: IpAddr| match like {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        self.fields.addresses = match (self.src, self.dst) {
            (Some(src), Some(dst)) if src.is_ipv4() != dst.is_ipv4() => {
                return Err("`src` and `dst` are of different IP versions".to_owned());
            }
            (Some(src), dst) => Some((src, dst.unwrap_or(any(src)))),
            (None, Some(dst)) => Some((any(dst), dst)),
            // Ports, a protocol or a code point make it an IP packet all the same.
            (None, None) if self.is_ip() => {
                Some((Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()))
            }
            (None, None) => None,
        };
        if self.src_port.is_some() || self.dst_port.is_some() {
            self.fields.ports = Some((self.src_port.unwrap_or(0), self.dst_port.unwrap_or(0)));
            if self.fields.protocol.is_some_and(|protocol| !matches!(protocol, 6 | 17 | 132)) {
                return Err("only tcp, udp and sctp have ports".to_owned());
            }
        }
        match program.excludes(self.fields.tenant, &self.fields.metadata) {
            Some(why) => Err(why),
            None => Ok(Filter { fields: self.fields }),
        }
    }

    fn is_ip(&self) -> bool {
        let wanted = ["protocol", "src_port", "dst_port", "dscp"];
        self.seen.iter().any(|seen| wanted.contains(&seen.as_str()))
    }
}

fn tenant(program: &Program, name: &str) -> Result<TenantId, String> {
    let position = program.tenants.iter().position(|tenant| tenant.name == name);
    let id = position.and_then(|index| u32::try_from(index).ok()).map(TenantId);
    id.ok_or_else(|| {
        let near = nearest(name, program.tenants.iter().map(|tenant| tenant.name.as_str()));
        let near = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        format!("there is no tenant `{name}`{near}{}", there_are(program))
    })
}

/// The tenants' names, the first ones of many.
fn there_are(program: &Program) -> String {
    let names: Vec<&str> = program.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    let more = if names.len() > MOST_NAMED { ", .." } else { "" };
    match &names[..names.len().min(MOST_NAMED)] {
        [] => "; the policy has none".to_owned(),
        first => format!("; the tenants are {}{more}", first.join(", ")),
    }
}

/// Tenants that a message names.
const MOST_NAMED: usize = 16;

fn address(text: &str) -> Result<IpAddr, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is no address such as `10.0.0.1`; a packet has one, so no prefix"))
}

fn number<T: std::str::FromStr + std::fmt::Display>(text: &str, most: T) -> Result<T, String> {
    text.parse().map_err(|_| format!("write a whole number from 0 to {most}"))
}
