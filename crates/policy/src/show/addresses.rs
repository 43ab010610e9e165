//! The addresses that are bound to each tenant's port, and what it means where none are.

use std::fmt::Write as _;

use crate::addresses::{Addresses, Binding};
use crate::config::{Config, TenantConfig};

/// Addresses of one tenant that are shown.
const MOST_SHOWN: usize = 6;

/// A line for each tenant whose addresses are bound, and what tenants with unbound addresses may do.
pub(super) fn addresses_text(config: &Config) -> String {
    if config.tenants.is_empty() {
        return String::new();
    }
    let is_unbound = |tenant: &&TenantConfig| tenant.addresses.word() == "unbound";
    let (unbound, bound): (Vec<_>, Vec<_>) = config.tenants.iter().partition(|tenant| is_unbound(tenant));
    let mut text = String::new();
    if !bound.is_empty() {
        text.push_str("\nAddresses are bound to their tenants' ports:\n");
        for tenant in &bound {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {}: {}", tenant.name, bound_words(&tenant.addresses));
        }
    }
    if unbound.is_empty() {
        return text;
    }
    let names: Vec<&str> = unbound.iter().map(|tenant| tenant.name.as_str()).collect();
    let others = config.tenants.iter().any(|tenant| !tenant.addresses.ips.is_empty());
    let what = match others {
        true => "each may claim any address that no other tenant states, and get the traffic for it",
        false => "each may claim any IP address, also a neighbour's, and get the traffic for it",
    };
    let _ = write!(
        text,
        "\nIP addresses are not bound where `addresses` states none; {what}:\n  {}\n",
        names.join(", ")
    );
    text
}

/// The addresses that one tenant is bound to.
fn bound_words(addresses: &Addresses) -> String {
    let stated = stated_words(addresses);
    let of = stated.as_deref().unwrap_or("no address");
    match addresses.binding {
        Binding::Strict => of.to_owned(),
        Binding::Router if addresses.ips.is_empty() => {
            "a router: sends from any address, and may claim each that no other tenant states".to_owned()
        }
        Binding::Router => format!("{of}; a router: sends from any address as well, and claims only these"),
        Binding::Off => match stated {
            Some(stated) => {
                format!("off: held to nothing, and may claim any address; the others do not claim {stated}")
            }
            None => {
                "off: held to nothing, and may claim any address, also those stated for others".to_owned()
            }
        },
    }
}

fn stated_words(addresses: &Addresses) -> Option<String> {
    let all = addresses.texts();
    let shown = all.iter().take(MOST_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MOST_SHOWN) {
        _ if all.is_empty() => None,
        0 => Some(shown),
        more => Some(format!("{shown} and {more} more")),
    }
}
