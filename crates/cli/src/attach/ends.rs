//! The two ends of a container's interface.
//!
//! Why: a container's `eth0` is one end of a veth pair; its other end lies on the host, with a name made up by the
//! container engine.
//! From: `ip -json -details address` on both sides: each end names the other's index.
//! Not here: what is done with the ends.
//! Invariant: a pair is found only if each end names the other.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use plimsoll_ports::PortError;
use plimsoll_ports::netns::{Netns, NetnsRef};
use serde::Deserialize;

use crate::args::Attach;
use crate::failure::Failure;

/// The ends of a veth pair.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The end in the container.
    pub inside: String,
    /// The end on the host.
    pub host: String,
    /// The bridge that the host's end is a port of.
    pub bridge: Option<String>,
    /// What an earlier run found, as the host's end tells it.
    pub first: Option<First>,
    /// Whether the host has IPv6 on its end.
    pub ipv6: bool,
    /// The bridge's hardware address, where it is that of the host's end: the kernel gives a bridge the lowest of its ports',
    /// and would give it another without this one.
    pub bridge_address: Option<String>,
    /// The container's addresses there: the hardware address, then IP addresses but for link-local ones.
    pub addresses: Vec<String>,
}

/// How the host's end was when it was first attached. It is kept as the interface's alias, and so goes with the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct First {
    /// The bridge that it was a port of.
    pub bridge: Option<String>,
    /// Whether the host had IPv6 on it.
    pub ipv6: bool,
}

impl First {
    /// The alias of the host's end.
    pub(super) fn alias(&self) -> String {
        let bridge = self.bridge.as_deref().unwrap_or("-");
        format!("{ATTACHED}bridge {bridge}, ipv6 {}", if self.ipv6 { "on" } else { "off" })
    }

    fn read(alias: &str) -> Option<Self> {
        let (bridge, ipv6) = alias.strip_prefix(ATTACHED)?.strip_prefix("bridge ")?.split_once(", ipv6 ")?;
        let bridge = (bridge != "-").then(|| bridge.to_owned());
        Some(Self { bridge, ipv6: ipv6 == "on" })
    }
}

/// The begin of the alias of an end that was attached.
const ATTACHED: &str = "attached by plimsoll, before: ";

impl Ends {
    /// How the host's end was before it was attached for the first time, as far as that is known.
    pub(crate) fn before(&self) -> First {
        let first = self.first.as_ref();
        First {
            bridge: self.bridge.clone().or_else(|| first?.bridge.clone()),
            ipv6: first.map_or(self.ipv6, |first| first.ipv6),
        }
    }
}

/// An interface, as `ip` shows it.
#[derive(Debug, Deserialize)]
struct Link {
    ifindex: u32,
    ifname: String,
    /// The other end's index, where it is in another namespace.
    link_index: Option<u32>,
    master: Option<String>,
    ifalias: Option<String>,
    linkinfo: Option<Kind>,
    /// The hardware address.
    address: Option<String>,
    #[serde(default)]
    addr_info: Vec<Address>,
}

#[derive(Debug, Deserialize)]
struct Address {
    local: Option<String>,
    scope: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    info_kind: Option<String>,
}

/// Finds the ends that the command line names.
pub(super) fn find(args: &Attach) -> Result<Ends, Failure> {
    let (netns, place) = match (&args.container, &args.netns, args.pid) {
        (Some(name), ..) => (of_process(of_container(name)?), format!("container `{name}`")),
        (_, Some(name), _) => (NetnsRef::Name(name.clone()), format!("network namespace `{name}`")),
        (.., pid) => {
            let pid = pid.unwrap_or_default();
            (of_process(pid), format!("the network namespace of process {pid}"))
        }
    };
    find_in(&netns, args.interface.as_deref(), &place).map_err(|failure| match failure {
        Failure::Failed(why) if args.netns.is_none() => Failure::Failed(format!("{place}: {why}")),
        failure => failure,
    })
}

/// Finds the ends of an interface in a namespace, which messages call `place`; of its only veth where none is named.
pub(crate) fn find_in(netns: &NetnsRef, interface: Option<&str>, place: &str) -> Result<Ends, Failure> {
    let failed = |error: PortError| Failure::Failed(error.to_string());
    let (netns, own) = (Netns::open(netns).map_err(failed)?, Netns::own().map_err(failed)?);
    if netns.number().ok() == own.number().ok() {
        return Err(Failure::Wrong(format!(
            "{place} shares the network namespace of this command, so it has no veth of its own; start the container with a \
             network of its own (not `--network host`)"
        )));
    }
    let ends = pair(&links(&netns)?, &links(&own)?, interface, place);
    let ends = ends.map_err(Failure::Wrong)?;
    let off = fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", ends.host));
    // Without IPv6 in the kernel there is nothing to put back.
    Ok(Ends { ipv6: off.is_ok_and(|off| off.trim() == "0"), ..ends })
}

fn of_process(pid: u32) -> NetnsRef {
    NetnsRef::Path(PathBuf::from(format!("/proc/{pid}/ns/net")))
}

/// The first process of a container of Docker or Podman.
fn of_container(name: &str) -> Result<u32, Failure> {
    let (mut found, mut said) = (Vec::new(), Vec::new());
    for engine in ["docker", "podman"] {
        let mut inspect = Command::new(engine);
        inspect.args(["inspect", "--type", "container", "--format", "{{.State.Pid}}", "--", name]);
        match inspect.output() {
            Ok(done) if done.status.success() => {
                let pid = String::from_utf8_lossy(&done.stdout).trim().parse().unwrap_or(0);
                found.push((engine, pid));
            }
            Ok(done) => said.push(format!("{engine}: {}", String::from_utf8_lossy(&done.stderr).trim())),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => said.push(format!("{engine}: {error}")),
        }
    }
    choose(name, &found, &said).map_err(Failure::Wrong)
}

fn choose(name: &str, found: &[(&str, u32)], said: &[String]) -> Result<u32, String> {
    let running: Vec<_> = found.iter().filter(|(_, pid)| *pid > 0).collect();
    match (running.as_slice(), found, said) {
        ([(_, pid)], ..) => Ok(*pid),
        ([_, _, ..], ..) => Err(format!(
            "Docker and Podman both run a container `{name}`; name its first process with `--pid` in place of `--container`"
        )),
        ([], [(engine, _), ..], _) => {
            Err(format!("container `{name}` does not run; start it with `{engine} start {name}`"))
        }
        ([], [], []) => {
            Err("neither `docker` nor `podman` is installed; name the container's first process with \
                             `--pid`, or its network namespace with `--netns`"
                .to_owned())
        }
        ([], [], said) => Err(format!(
            "there is no container `{name}` ({}); `docker ps` and `podman ps` list those that run",
            said.join("; ")
        )),
    }
}

/// All interfaces of a namespace.
fn links(netns: &Netns) -> Result<Vec<Link>, Failure> {
    let place = netns.place();
    let done = netns.command("ip").args(["-json", "-details", "address", "show"]).output();
    let done = done.map_err(|error| Failure::io(format!("run `ip` of iproute2 in {place}"), &error))?;
    if !done.status.success() {
        let why = String::from_utf8_lossy(&done.stderr);
        return Err(Failure::Failed(format!("`ip address show` in {place}: {}", why.trim())));
    }
    serde_json::from_slice(&done.stdout).map_err(|error| {
        Failure::Failed(format!("`ip -json address show` in {place} is not understood: {error}"))
    })
}

fn pair(inside: &[Link], host: &[Link], wanted: Option<&str>, place: &str) -> Result<Ends, String> {
    let veths: Vec<&Link> = inside.iter().filter(|link| link.is_veth()).collect();
    let names = || veths.iter().map(|link| link.ifname.as_str()).collect::<Vec<_>>().join("`, `");
    let chosen = match (wanted, veths.as_slice()) {
        (Some(wanted), _) => match veths.iter().find(|link| link.ifname == wanted) {
            Some(link) => *link,
            None if veths.is_empty() => return Err(no_veth(place)),
            None => {
                return Err(format!("{place} has no veth `{wanted}`; `--interface` may name `{}`", names()));
            }
        },
        (None, [only]) => only,
        (None, []) => return Err(no_veth(place)),
        (None, _) => {
            return Err(format!("{place} has several veths: `{}`; name one with `--interface`", names()));
        }
    };
    let other = host.iter().find(|link| {
        link.is_veth() && chosen.link_index == Some(link.ifindex) && link.link_index == Some(chosen.ifindex)
    });
    let Some(other) = other else {
        return Err(format!(
            "the other end of `{}` in {place} is not in the network namespace of this command; run the command where the \
             container's bridge is",
            chosen.ifname
        ));
    };
    Ok(Ends {
        inside: chosen.ifname.clone(),
        host: other.ifname.clone(),
        bridge: other.master.clone(),
        first: other.ifalias.as_deref().and_then(First::read),
        ipv6: true,
        bridge_address: bridge_address(host, other),
        addresses: chosen.addresses(),
    })
}

fn bridge_address(host: &[Link], port: &Link) -> Option<String> {
    let bridge = host.iter().find(|link| Some(&link.ifname) == port.master.as_ref())?;
    bridge.address.clone().filter(|address| Some(address) == port.address.as_ref())
}

fn no_veth(place: &str) -> String {
    format!(
        "{place} has no veth; a container has one on a bridge network of Docker, or of Podman as root (rootless Podman \
         makes a TAP of its own)"
    )
}

impl Link {
    fn addresses(&self) -> Vec<String> {
        let global = self.addr_info.iter().filter(|address| address.scope.as_deref() == Some("global"));
        self.address.iter().chain(global.filter_map(|address| address.local.as_ref())).cloned().collect()
    }

    fn is_veth(&self) -> bool {
        self.linkinfo.as_ref().and_then(|info| info.info_kind.as_deref()) == Some("veth")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(json: &str) -> Vec<Link> {
        serde_json::from_str(json).expect("as `ip` writes it")
    }

    fn veth(ifindex: u32, ifname: &str, other: u32) -> String {
        format!(
            r#"{{"ifindex":{ifindex},"ifname":"{ifname}","link_index":{other},"link_netnsid":0,"address":"02:42:ac:11:00:02","linkinfo":{{"info_kind":"veth"}},"addr_info":[{{"local":"172.17.0.2","scope":"global"}},{{"local":"fe80::1","scope":"link"}}]}}"#
        )
    }

    #[test]
    fn the_only_veth_and_its_bridge_are_found() {
        let inside =
            links(&format!(r#"[{{"ifindex":1,"ifname":"lo","linkinfo":{{}}}},{}]"#, veth(3, "eth0", 4)));
        let host = links(&format!(
            r#"[{},{{"ifindex":4,"ifname":"veth1","link_index":3,"address":"02:00:00:00:00:01","master":"docker0","linkinfo":{{"info_kind":"veth","info_slave_kind":"bridge"}}}},{{"ifindex":5,"ifname":"docker0","address":"02:00:00:00:00:01","linkinfo":{{"info_kind":"bridge"}}}}]"#,
            veth(9, "veth9", 3)
        ));
        let ends = pair(&inside, &host, None, "container `shop`").expect("one pair");
        assert_eq!((ends.inside.as_str(), ends.host.as_str()), ("eth0", "veth1"));
        assert_eq!(ends.bridge.as_deref(), Some("docker0"));
        assert_eq!(
            ends.bridge_address.as_deref(),
            Some("02:00:00:00:00:01"),
            "the bridge would change its address"
        );
        assert_eq!(ends.addresses, ["02:42:ac:11:00:02", "172.17.0.2"]);
    }

    #[test]
    fn what_was_found_at_first_is_known_again() {
        let first = First { bridge: Some("docker0".into()), ipv6: true };
        assert_eq!(First::read(&first.alias()), Some(first.clone()));
        let none = First { bridge: None, ipv6: false };
        assert_eq!(First::read(&none.alias()), Some(none));
        assert!(First::read("plimsoll:1:2:3").is_none() && First::read("of somebody else").is_none());

        let inside = links(&format!("[{}]", veth(3, "eth0", 4)));
        let attached = veth(4, "veth1", 3)
            .replace(r#""linkinfo""#, &format!(r#""ifalias":"{}","linkinfo""#, first.alias()));
        let ends = pair(&inside, &links(&format!("[{attached}]")), None, "p").expect("one pair");
        assert_eq!((ends.bridge.as_ref(), ends.before()), (None, first));
    }

    #[test]
    fn what_cannot_be_chosen_says_what_to_do() {
        let two = links(&format!("[{},{}]", veth(3, "eth0", 4), veth(5, "eth1", 6)));
        let host = links(&format!("[{}]", veth(6, "veth6", 5)));
        let said = |wanted| pair(&two, &host, wanted, "container `shop`").expect_err("refused");
        assert!(said(None).contains("`eth0`, `eth1`; name one with `--interface`"), "{}", said(None));
        assert!(said(Some("eth2")).contains("may name `eth0`, `eth1`"), "{}", said(Some("eth2")));
        assert!(said(Some("eth0")).contains("is not in the network namespace"), "{}", said(Some("eth0")));
        assert_eq!(pair(&two, &host, Some("eth1"), "p").expect("found").host, "veth6");
        assert!(pair(&[], &host, None, "p").expect_err("none").contains("has no veth"));
        assert!(pair(&[], &host, Some("eth0"), "p").expect_err("none").contains("has no veth"));
    }

    #[test]
    fn a_container_is_one_that_runs() {
        let said = |found: &[(&str, u32)], said: &[String]| choose("shop", found, said).expect_err("refused");
        assert_eq!(choose("shop", &[("docker", 0), ("podman", 7)], &[]), Ok(7));
        assert!(said(&[("docker", 5), ("podman", 7)], &[]).contains("`--pid`"));
        assert!(said(&[("podman", 0)], &[]).contains("`podman start shop`"));
        assert!(said(&[], &[]).contains("neither `docker` nor `podman` is installed"));
        assert!(said(&[], &["docker: No such container: shop".into()]).contains("No such container: shop"));
    }
}
