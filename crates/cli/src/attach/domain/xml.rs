//! What a machine's XML says of its memory and its interfaces, and the XML of a new one.
//!
//! Why: the daemon reads and writes the machine's memory, which must be shared for that.
//! From: libvirt's "Domain XML format": `memoryBacking`, `numa` and `interface`.
//! Not here: changing the machine.
//! Invariant: nothing of the machine's text is executed or written back, but an interface of its own to take it away.

use roxmltree::{Document, Node};

/// A machine, as `virsh dumpxml` shows it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Domain {
    pub uuid: String,
    /// Whether it has an id, as machines that run do.
    pub runs: bool,
    memory_is_shared: bool,
    interfaces: Vec<Interface>,
}

/// An interface by vhost-user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    socket: String,
    pub mac: String,
    /// The whole element.
    pub text: String,
}

impl Domain {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let document = Document::parse(text).map_err(|error| error.to_string())?;
        let domain = document.root_element();
        let uuid = child(domain, "uuid").and_then(|uuid| uuid.text()).unwrap_or_default().trim().to_owned();
        let devices = child(domain, "devices");
        let interfaces =
            devices.iter().flat_map(Node::children).filter_map(|device| interface_in(text, device));
        Ok(Self {
            uuid,
            runs: domain.attribute("id").is_some(),
            memory_is_shared: is_shared(domain),
            interfaces: interfaces.collect(),
        })
    }

    /// Its interface at this socket.
    pub(super) fn interface(&self, socket: &str) -> Option<Interface> {
        self.interfaces.iter().find(|interface| interface.socket == socket).cloned()
    }

    /// Refuses a machine whose memory the daemon could not map.
    pub(super) fn check_memory(&self) -> Result<(), String> {
        if self.memory_is_shared {
            return Ok(());
        }
        Err("the machine's memory is not shared, so no vhost-user interface works; shut it down, add this to its XML (`virsh edit`), \
             and start it:
  <memoryBacking>
    <source type='memfd'/>
    <access mode='shared'/>
  </memoryBacking>"
            .to_owned())
    }
}

fn child<'n, 't>(node: Node<'n, 't>, name: &str) -> Option<Node<'n, 't>> {
    node.children().find(|child| child.has_tag_name(name))
}

/// Whether all memory is shared: as a whole, or in each of its NUMA cells.
fn is_shared(domain: Node) -> bool {
    let backing = child(domain, "memoryBacking");
    let is_shared =
        |node: Option<Node>, key: &str| node.and_then(|node| node.attribute(key)) == Some("shared");
    let whole = is_shared(backing.and_then(|backing| child(backing, "access")), "mode");
    let cells = child(domain, "cpu").and_then(|cpu| child(cpu, "numa"));
    let cells: Vec<Node> =
        cells.iter().flat_map(Node::children).filter(|cell| cell.has_tag_name("cell")).collect();
    // A cell's own word goes before that of the whole.
    let of_cell = |cell: &Node| cell.attribute("memAccess").map_or(whole, |access| access == "shared");
    if cells.is_empty() { whole } else { cells.iter().all(of_cell) }
}

fn interface_in(text: &str, device: Node) -> Option<Interface> {
    let is_ours = device.has_tag_name("interface") && device.attribute("type") == Some("vhostuser");
    let socket = child(device, "source").filter(|_| is_ours)?.attribute("path")?.to_owned();
    let mac = child(device, "mac").and_then(|mac| mac.attribute("address")).unwrap_or_default().to_owned();
    Some(Interface { socket, mac, text: text[device.range()].to_owned() })
}

/// The XML of an interface that connects to a port's socket.
pub(super) fn interface(socket: &str, mac: &str) -> String {
    let socket = escaped(socket);
    format!(
        "<interface type='vhostuser'>
  <mac address='{mac}'/>
  <source type='unix' path='{socket}' mode='client'>
    <reconnect enabled='yes' timeout='1'/>
  </source>
  <model type='virtio'/>
</interface>
"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: &str = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>";

    fn domain(more: &str, devices: &str) -> Domain {
        let text =
            format!("<domain type='qemu' id='3'><uuid>u-1</uuid>{more}<devices>{devices}</devices></domain>");
        Domain::read(&text).expect("a machine")
    }

    #[test]
    fn an_interface_is_known_again_by_its_socket() {
        let made = interface("/run/a&b'<c>.sock", "52:54:00:00:00:07");
        let other = "<interface type='network'><mac address='52:54:00:00:00:08'/><source network='default'/></interface>";
        let found = domain(SHARED, &format!("{other}{made}"));
        assert!(found.runs && found.uuid == "u-1");
        let interface = found.interface("/run/a&b'<c>.sock").expect("it is there");
        assert_eq!((interface.mac.as_str(), interface.text.as_str()), ("52:54:00:00:00:07", made.trim()));
        assert_eq!(found.interface("/run/other.sock"), None);
    }

    #[test]
    fn memory_must_be_shared_in_all_of_its_parts() {
        let numa = |cells: &str| format!("<cpu><numa>{cells}</numa></cpu>");
        let (shared, private) = ("<cell id='0' memAccess='shared'/>", "<cell id='1' memAccess='private'/>");
        assert!(domain(SHARED, "").check_memory().is_ok());
        assert!(domain(&numa(shared), "").check_memory().is_ok());
        assert!(domain(&(SHARED.to_owned() + &numa("<cell id='0'/>")), "").check_memory().is_ok());
        for more in [
            "",
            "<memoryBacking><hugepages/></memoryBacking>",
            &numa(&(shared.to_owned() + private)),
            &(SHARED.to_owned() + &numa(private)),
        ] {
            let why = domain(more, "").check_memory().expect_err("refused");
            assert!(why.contains("virsh edit") && why.contains("<access mode='shared'/>"), "{why}");
        }
    }

    #[test]
    fn what_is_no_xml_is_refused() {
        for text in ["", "no xml", "<domain>", "<!DOCTYPE d [<!ENTITY a 'b'>]><domain>&a;</domain>"] {
            assert!(Domain::read(text).is_err(), "{text}");
        }
        assert!(!domain("", "").memory_is_shared);
    }
}
