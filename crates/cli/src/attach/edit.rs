//! Changes the `port` and `addresses` of one tenant in the text of a policy file.
//!
//! Why: the file is the operator's, with comments and an order of its own, which must stay.
//! From: the places that the parser gives for each value.
//! Not here: what the file means (`policy`), writing it.
//! Invariant: the new text reads as the old one does, but for these values; else there is no new text.

use plimsoll_document::{FileId, Mark, Name, Sources, Tree, Value, nearest, parse, yaml};

/// A changed text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Edited {
    /// All of it.
    pub text: String,
    /// The line of the value, counted from 1.
    pub line: usize,
    /// The value until now.
    pub before: String,
}

/// What a policy is to say of a tenant.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    port: Tree,
    /// None: its `addresses` are left as they are.
    addresses: Vec<String>,
}

impl Wanted {
    /// A packet socket on an interface, of a container with these addresses.
    pub(super) fn interface(name: &str, addresses: &[String]) -> Self {
        let port = yaml::map([("af_packet".to_owned(), yaml::text(name))]);
        Self { port, addresses: addresses.to_vec() }
    }

    /// The socket of a virtual machine with this hardware address.
    pub(super) fn machine(socket: &str, mac: &str) -> Self {
        let keys =
            yaml::map([("socket".to_owned(), yaml::text(socket)), ("mac".to_owned(), yaml::text(mac))]);
        Self { port: yaml::map([("vhost_user".to_owned(), keys)]), addresses: Vec::new() }
    }

    /// The keys as a policy states them.
    pub(super) fn keys(&self) -> String {
        let port = format!("port: {}", yaml::on_one_line(&self.port));
        if self.addresses.is_empty() {
            return port;
        }
        format!("{port}, addresses: {}", yaml::on_one_line(&address_tree(&self.addresses)))
    }
}

/// Gives a tenant another port, and these addresses if the file states none.
pub(super) fn set_port(file: &str, text: &str, tenant: &str, wanted: &Wanted) -> Result<Edited, String> {
    let sources = Sources::one(file, text);
    let mut tree = parse(&sources, FileId(0))
        .map_err(|error| format!("{}: {}", sources.place(error.at), error.message))?;
    let entries = tenant_in(file, &mut tree, tenant)?;
    let place = entries.iter().position(|(name, _)| name.value == "port").ok_or_else(|| {
        format!("{file}: tenant `{tenant}` has no `port` of its own; give it one, such as `port: {{af_packet: later}}`, to be replaced")
    })?;
    let (key, port) = &mut entries[place];
    let at = sources.place(port.at);
    let stated = wanted.keys();
    let by_hand =
        format!("{at}: the port of tenant `{tenant}` cannot be changed safely; write `{stated}` by hand");
    let (range, key) = (written(text, port).ok_or(&by_hand)?, key.at.offset as usize);
    let (line, _) = sources.position(port.at);

    port.value = wanted.port.value.clone();
    let mut openings = vec![String::new()];
    match entries.iter().find(|(name, _)| name.value == "addresses") {
        Some((_, before)) => check_addresses(&at, tenant, before, &wanted.addresses)?,
        None if wanted.addresses.is_empty() => {}
        None => {
            let list = address_tree(&wanted.addresses);
            openings = openings_for(text, key, &yaml::on_one_line(&list));
            entries.insert(place, (Name::new("addresses".to_owned(), Mark::default()), list));
        }
    }
    let whole = yaml::on_one_line(&tree);
    let reads = |text: &String| {
        parse(&Sources::one(file, text), FileId(0)).is_ok_and(|read| yaml::on_one_line(&read) == whole)
    };
    let (head, middle, tail) = (&text[..key], &text[key..range.start], &text[range.end..]);
    let new = yaml::on_one_line(&wanted.port);
    let edited = openings.iter().map(|opening| format!("{head}{opening}{middle}{new}{tail}")).find(reads);
    Ok(Edited { text: edited.ok_or(by_hand)?, line, before: text[range].to_owned() })
}

fn address_tree(addresses: &[String]) -> Tree {
    yaml::list(addresses.iter().map(yaml::text))
}

/// How `addresses` may be written before the key at `key`: in braces, or on a line of its own.
fn openings_for(text: &str, key: usize, list: &str) -> Vec<String> {
    let indent = text[..key].rsplit('\n').next().unwrap_or_default();
    let mut openings = vec![format!("addresses: {list}, ")];
    if indent.trim().is_empty() {
        openings.push(format!("addresses: {list}\n{indent}"));
    }
    openings
}

/// Refuses a tenant whose stated addresses lack the container's hardware address: all its packets would be dropped.
fn check_addresses(at: &str, tenant: &str, stated: &Tree, addresses: &[String]) -> Result<(), String> {
    let stated = yaml::on_one_line(stated).to_ascii_lowercase();
    match addresses.first() {
        Some(mac) if !stated.contains(mac.as_str()) => Err(format!(
            "{at}: the `addresses` of tenant `{tenant}` lack the container's hardware address {mac}, so its packets would be \
             dropped; add it there, or take `addresses` away, to have them written: {}",
            yaml::on_one_line(&address_tree(addresses))
        )),
        _ => Ok(()),
    }
}

/// The keys of a tenant.
fn tenant_in<'t>(file: &str, tree: &'t mut Tree, tenant: &str) -> Result<&'t mut Vec<(Name, Tree)>, String> {
    let tenants = entry(tree, "tenants").ok_or_else(|| format!("{file}: there is no `tenants`"))?;
    let names: Vec<String> = match &tenants.value {
        Value::Map(entries) => entries.iter().map(|(name, _)| name.value.clone()).collect(),
        _ => Vec::new(),
    };
    match entry(tenants, tenant).map(|tree| &mut tree.value) {
        Some(Value::Map(entries)) => Ok(entries),
        Some(_) => Err(format!("{file}: tenant `{tenant}` has no keys")),
        None => {
            let near = nearest(tenant, names.iter().map(String::as_str));
            let meant = near.map_or_else(|| ".".to_owned(), |near| format!("; did you mean `{near}`?"));
            Err(format!(
                "{file}: there is no tenant `{tenant}`{meant} The tenants are `{}`",
                names.join("`, `")
            ))
        }
    }
}

/// The value of a key that is there once.
fn entry<'t>(tree: &'t mut Tree, key: &str) -> Option<&'t mut Tree> {
    let Value::Map(entries) = &mut tree.value else { return None };
    let mut found = entries.iter_mut().filter(|(name, _)| name.value == key);
    let (_, value) = found.next()?;
    found.next().is_none().then_some(value)
}

/// Where a value is written, if it is a scalar or a map in braces.
fn written(text: &str, value: &Tree) -> Option<std::ops::Range<usize>> {
    let start = value.at.offset as usize;
    let rest = text.get(start..)?;
    match &value.value {
        Value::Text(_) => (value.at.len > 0).then(|| value.at.range()),
        Value::Map(_) if rest.starts_with('{') => Some(start..start + braces(rest)?),
        _ => None,
    }
}

/// Length of a map in braces. Quotes are skipped; braces in a comment give a text that reads differently, and is refused.
fn braces(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0_usize, None);
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(character),
            (None, '{') => depth += 1,
            (None, '}') => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "# mine\nuplink: {port: {af_packet: up0}, rate: 1Gbps} # port\ntenants:\n  batch: {port: memory, max: \
                          1Gbps}\n  shop: # first\n    weight: 2\n    port: {tap: {netns: shop, name: \"e}0\"}} # why\n";

    const MAC: &str = "02:42:ac:11:00:02";

    fn set(text: &str, tenant: &str, interface: &str) -> Result<Edited, String> {
        set_port(
            "p.yaml",
            text,
            tenant,
            &Wanted::interface(interface, &[MAC.to_owned(), "fd00::2".to_owned()]),
        )
    }

    #[test]
    fn port_and_addresses_change_and_all_else_stays() {
        let list = "addresses: [02:42:ac:11:00:02, \"fd00::2\"]";
        let edited = set(POLICY, "shop", "veth1").expect("edited");
        let before = "port: {tap: {netns: shop, name: \"e}0\"}}";
        let written = edited.text.replace(&yaml_list(&edited.text), list);
        assert_eq!(written, POLICY.replace(before, &format!("{list}\n    port: {{af_packet: veth1}}")));
        assert_eq!((edited.line, edited.before.as_str()), (7, "{tap: {netns: shop, name: \"e}0\"}}"));
        let edited = set(POLICY, "batch", "veth2").expect("edited");
        let written = edited.text.replace(&yaml_list(&edited.text), list);
        assert_eq!(written, POLICY.replace("port: memory", &format!("{list}, port: {{af_packet: veth2}}")));
        let again = set(&edited.text, "batch", "veth2").expect("edited");
        assert_eq!(again.text, edited.text);
    }

    /// `addresses: [...]` as it was written, however its scalars are quoted.
    fn yaml_list(text: &str) -> String {
        let start = text.find("addresses: [").expect("written");
        text[start..=start + text[start..].find(']').expect("ended")].to_owned()
    }

    #[test]
    fn addresses_that_the_operator_states_stay_and_must_have_the_containers() {
        let policy = POLICY.replace("weight: 2", "addresses: [10.7.0.1, 02:42:AC:11:00:02]");
        let edited = set(&policy, "shop", "veth1").expect("edited");
        assert_eq!(edited.text, policy.replace("{tap: {netns: shop, name: \"e}0\"}}", "{af_packet: veth1}"));
        let said =
            set(&POLICY.replace("weight: 2", "addresses: 10.7.0.1"), "shop", "veth1").expect_err("refused");
        assert!(said.contains("lack the container's hardware address 02:42:ac:11:00:02"), "{said}");
    }

    #[test]
    fn what_is_not_in_one_piece_is_left_to_the_operator() {
        let block = "tenants:\n  shop:\n    port:\n      af_packet: veth0\n";
        let alias = "one: &p {af_packet: veth0}\ntenants:\n  shop: {port: *p}\n";
        let comment = "tenants:\n  shop:\n    port: {af_packet: # } not yet\n      veth0}\n";
        for text in [block, alias, comment] {
            let said = set(text, "shop", "veth1").expect_err("refused");
            assert!(
                said.contains("write `port: {af_packet: veth1}, addresses: [") && said.ends_with("by hand"),
                "{said}"
            );
        }
    }

    #[test]
    fn a_machines_port_replaces_another_one_and_no_addresses_are_stated() {
        let wanted = Wanted::machine("/run/shop.sock", MAC);
        let edited = set_port("p.yaml", POLICY, "shop", &wanted).expect("changed");
        let port = format!("{{vhost_user: {{socket: /run/shop.sock, mac: \"{MAC}\"}}}}");
        let expected = POLICY.replace("{tap: {netns: shop, name: \"e}0\"}}", &port);
        assert_eq!(edited.text, expected);
    }

    #[test]
    fn a_tenant_that_is_not_there_is_named_with_those_that_are() {
        let said = set(POLICY, "shob", "veth1").expect_err("refused");
        assert!(said.contains("no tenant `shob`; did you mean `shop`?"), "{said}");
        assert!(said.contains("`batch`, `shop`"), "{said}");
        assert!(set("uplink: {}", "shop", "v").expect_err("none").contains("no `tenants`"));
        assert!(set("a: [", "shop", "v").expect_err("no YAML").contains("p.yaml:1:"));
    }
}
