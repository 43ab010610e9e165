//! Attachments: the file of each container's tenant, in a folder that the policy includes.
//!
//! Why: the file is all that is kept of an attachment, so nothing can disagree with it, and a daemon that starts finds it.
//! From: `docs/policy.md`, "Tenants that come and go".
//! Not here: what becomes of the file (the daemon), and how containers are named and connected (`cni`, `docker`).
//! Invariant: one call at a time changes the folder; a file is there whole or not at all.

mod folder;
pub(crate) mod keys;
mod server;

use serde_json::{Map, Value};

pub(crate) use folder::{Folder, write_whole};
pub(crate) use server::Server;

/// What attaches containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Maker {
    /// The begin of its files' names.
    prefix: &'static str,
    /// What its files and messages call it.
    pub program: &'static str,
}

/// The CNI plugin.
pub(crate) const CNI: Maker = Maker { prefix: "cni-", program: "plimsoll-cni" };
/// Docker's network plugin.
pub(crate) const DOCKER: Maker = Maker { prefix: "docker-", program: "plimsoll docker-plugin" };

/// One interface of a container in one network, as a tenant.
#[derive(Clone, Debug)]
pub(crate) struct Attachment {
    maker: Maker,
    /// The same for each call about it, and no other's.
    id: String,
    tenant: String,
    /// Keys of the tenant that its maker does not state itself.
    keys: Map<String, Value>,
}

impl Attachment {
    /// `id` has at least [`SUFFIX_LEN`] letters and digits; the tenant's name starts with `label`.
    pub(crate) fn new(maker: Maker, id: String, label: &str, keys: Map<String, Value>) -> Self {
        let tenant = format!("{}-{}", word(label), &id[..SUFFIX_LEN]);
        Self { maker, id, tenant, keys }
    }

    /// The attachment of a container of which nothing else is known.
    pub(crate) fn of(maker: Maker, id: String) -> Self {
        Self::new(maker, id, "", Map::new())
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The text of its file: notes, the tenant's keys, and what the maker states of it. A flow mapping of YAML is JSON.
    pub(crate) fn text(&self, notes: &[(&str, &str)], stated: &Value) -> String {
        let notes: String = notes.iter().map(|(key, value)| format!("# {key}: {value}\n")).collect();
        let stated = stated.as_object().into_iter().flatten();
        let lines = self.keys.iter().chain(stated).map(|(key, value)| format!("    {key}: {value}\n"));
        let Self { tenant, maker, .. } = self;
        format!(
            "# Written by {}. It goes with the container.\n{notes}tenants:\n  {tenant}:\n{}",
            maker.program,
            lines.collect::<String>()
        )
    }

    fn name(&self) -> String {
        format!("{}{}{}", self.maker.prefix, self.id, plimsoll_policy::INCLUDED)
    }

    /// Whether a tenant of this name is this attachment's.
    pub(crate) fn is_tenant(&self, name: &str) -> bool {
        name.strip_suffix(&self.id[..SUFFIX_LEN]).is_some_and(|label| label.ends_with('-'))
    }
}

/// Why a tenant could not be made or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub kind: Kind,
    pub message: String,
    /// What to do; empty where the message is enough.
    pub details: String,
}

/// Kinds of [`Trouble`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file cannot be read or written, or a command fails.
    Io,
    /// A configuration states what it may not.
    Config,
    /// No daemon answers.
    TryAgain,
    /// The daemon refused the tenant.
    Refused,
}

impl Trouble {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), details: String::new() }
    }

    pub(crate) fn details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }
}

/// The tenant in the text of an attachment's file.
pub(crate) fn tenant_in(text: &str) -> Option<&str> {
    let line = text.lines().skip_while(|line| *line != "tenants:").nth(1)?;
    line.trim().strip_suffix(':')
}

/// A note in the text of an attachment's file.
pub(crate) fn note_in<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix("# ")?.strip_prefix(key)?.strip_prefix(": "))
}

/// The interface whose packet socket is the tenant's port, where it is one. The port's own line says so: other lines may have words of the
/// container's owner.
pub(crate) fn veth_in(text: &str) -> Option<&str> {
    let rest = text.lines().find_map(|line| line.strip_prefix(r#"    port: {"af_packet":""#))?;
    rest.split_once('"').map(|(host, _)| host)
}

/// A name that a tenant's may begin with.
fn word(label: &str) -> String {
    let fine = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '-' };
    let word: String = label.chars().map(fine).take(LABEL).collect();
    if word.starts_with(|c: char| c.is_ascii_alphabetic()) { word } else { format!("c-{word}") }
}

/// Characters of a tenant's name that come from its container's; a tenant's name has 64 at most.
const LABEL: usize = 40;
/// Characters of a tenant's name that tell it from others.
pub(crate) const SUFFIX_LEN: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says_is_found_again() {
        let shop = Attachment::new(CNI, "0123456789abcdef".into(), "shop", Map::new());
        let stated = serde_json::json!({ "port": { "af_packet": "veth1" } });
        let text = shop.text(&[("network", "lan"), ("namespace", "/run/netns/x")], &stated);
        assert_eq!((tenant_in(&text), veth_in(&text)), (Some("shop-0123456789ab"), Some("veth1")));
        assert_eq!((note_in(&text, "network"), note_in(&text, "net")), (Some("lan"), None));
        assert_eq!(note_in(&text, "namespace"), Some("/run/netns/x"));
        assert!(tenant_in(&text).is_some_and(|tenant| shop.is_tenant(tenant)) && !shop.is_tenant("shop-1"));
        let owners = Map::from_iter([("delay".to_owned(), serde_json::json!({ "af_packet": "veth2" }))]);
        let text = Attachment::new(CNI, "0123456789abcdef".into(), "shop", owners).text(&[], &stated);
        assert_eq!(veth_in(&text), Some("veth1"), "{text}");
        assert_eq!((tenant_in(""), note_in("", "network"), veth_in("")), (None, None, None));
    }

    #[test]
    fn any_containers_name_makes_a_tenants() {
        for (label, expected) in
            [("shop", "shop"), ("4f2a", "c-4f2a"), ("ns.pod/1", "ns.pod-1"), ("", "c-"), ("ä", "c--")]
        {
            assert_eq!(word(label), expected);
        }
        assert!(word(&"x".repeat(300)).len() + 1 + SUFFIX_LEN <= 64);
    }
}
