//! `plimsoll attach --domain`: a virtual machine of libvirt gets an interface that is a tenant's port.
//!
//! Why: a machine that runs gets its envelope without a restart, and one that is defined keeps it.
//! From: `virsh dumpxml`, `attach-device` and `detach-device`; `<interface type='vhostuser'>`.
//! Not here: the port (the daemon), the machine's XML (`domain::xml`).
//! Invariant: the socket names the interface, so a call that is repeated finds what an earlier one has made; what fails puts back the
//! policy.

mod xml;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_daemon::Client;
use plimsoll_policy::Port;
use sha2::{Digest, Sha256};

use super::change::Change;
use super::edit::Wanted;
use super::{reload, say, what_is_left};
use crate::args::Attach;
use crate::failure::{Failure, print};
use crate::reader;
use xml::Domain;

/// Attaches a machine to a tenant, or detaches it.
pub(super) fn attach(args: &Attach, name: &str) -> Result<(), Failure> {
    let virsh = Virsh { connect: args.connect.clone(), domain: name.to_owned() };
    let now = virsh.read(&[])?;
    let next = virsh.read(&["--inactive"])?;
    let port = Stated::read(args, &now)?;
    if args.detach {
        return detach(args, &virsh, &port, (&now, &next));
    }
    now.check_memory().map_err(Failure::Wrong)?;
    let wanted = Wanted::machine(&port.socket, &port.mac);
    let change = (!port.is_machine).then_some(args.policy.as_deref()).flatten();
    let change = change.map(|file| Change::new(file, &args.tenant, &wanted)).transpose()?;
    let plan = Plan::new(args, &port, &now, &next);
    if args.dry_run {
        return print(&dry(args, &virsh, &port, &plan, change.as_ref(), &wanted));
    }
    let undo = make_port(args, &port, change.as_ref(), &wanted, &plan)?;
    plug_in(&virsh, &port, &plan).inspect_err(|_| undo())?;
    if plan.flags().is_empty() {
        say(&format!("domain `{name}` has the interface already\n"));
    }
    print(&format!("to undo this: {}\n", undoing(args, name)))
}

/// Gives the machine the interface everywhere it is to have it, or nowhere.
fn plug_in(virsh: &Virsh, port: &Stated, plan: &Plan) -> Result<(), Failure> {
    let mut done: Vec<&str> = Vec::new();
    for flag in plan.flags() {
        virsh.change("attach-device", &port.xml(), flag).inspect_err(|_| {
            // The first failure is the one to report.
            done.iter().for_each(|flag| drop(virsh.change("detach-device", &port.xml(), flag)));
        })?;
        say(&format!(
            "domain `{}`: interface {} at {} ({})\n",
            virsh.domain,
            port.mac,
            port.socket,
            words(flag)
        ));
        done.push(flag);
    }
    Ok(())
}

/// What is to be done to the machine.
#[derive(Debug)]
struct Plan {
    live: bool,
    config: bool,
}

impl Plan {
    fn new(args: &Attach, port: &Stated, now: &Domain, next: &Domain) -> Self {
        let lacks = |domain: &Domain| domain.interface(&port.socket).is_none();
        Self {
            live: now.runs && lacks(now),
            // A machine that does not run has nothing else.
            config: (args.persistent || !now.runs) && lacks(next),
        }
    }

    fn flags(&self) -> Vec<&'static str> {
        let flags = [(self.live, LIVE), (self.config, CONFIG)];
        flags.into_iter().filter_map(|(is_wanted, flag)| is_wanted.then_some(flag)).collect()
    }
}

const LIVE: &str = "--live";
const CONFIG: &str = "--config";

fn words(flag: &str) -> &'static str {
    if flag == LIVE { "now" } else { "from its next start on" }
}

/// Has the daemon open the port's socket; returns what puts back the policy.
fn make_port<'a>(
    args: &'a Attach,
    port: &Stated,
    change: Option<&'a Change>,
    wanted: &Wanted,
    plan: &Plan,
) -> Result<impl Fn() + use<'a>, Failure> {
    let reloads = args.write && !args.no_reload;
    if reloads {
        // A daemon that does not run is told before anything changes.
        Client::new(&args.socket).text("GET", "/v1/health")?;
    }
    let change_back = move || {
        if let Some(change) = change.filter(|_| args.write) {
            // The first failure is the one to report.
            let _ = change.write(&change.original);
            let _ = reloads.then(|| reload(args));
        }
    };
    match change {
        Some(change) if args.write => {
            change.write(&change.edited.text)?;
            say(&format!("{}\n", change.words(&args.tenant)));
        }
        Some(change) => say(&what_is_left(args, wanted, Some(change))),
        None if !port.is_machine => say(&what_is_left(args, wanted, None)),
        None => {}
    }
    if reloads {
        reload(args).inspect_err(|failure| {
            // Where only the reader of our words has gone, the daemon has obeyed.
            if !matches!(failure, Failure::PipeClosed) {
                change_back();
            }
        })?;
    }
    // QEMU connects at once, and refuses the interface if it cannot.
    if plan.live && !Path::new(&port.socket).exists() {
        change_back();
        let why = format!(
            "nothing listens at {}; the daemon must have the port of tenant `{}` first: \
             `plimsoll reload`, or `--policy FILE --write`",
            port.socket, args.tenant
        );
        return Err(Failure::Failed(why));
    }
    Ok(change_back)
}

fn detach(
    args: &Attach,
    virsh: &Virsh,
    port: &Stated,
    (now, next): (&Domain, &Domain),
) -> Result<(), Failure> {
    let name = &virsh.domain;
    let places = [(LIVE, now.runs.then_some(now)), (CONFIG, Some(next))];
    let found: Vec<_> = places
        .into_iter()
        .filter_map(|(flag, domain)| Some((flag, domain?.interface(&port.socket)?)))
        .collect();
    for (flag, interface) in &found {
        if args.dry_run {
            print(&format!("would run: {} # {}\n", virsh.line("detach-device", flag), port.socket))?;
            continue;
        }
        virsh.change("detach-device", &interface.text, flag)?;
        say(&format!("domain `{name}`: no interface at {} ({})\n", port.socket, words(flag)));
    }
    if found.is_empty() {
        say(&format!("domain `{name}` has no interface at {}\n", port.socket));
    }
    print(&format!(
        "tenant `{}` keeps its port; take it out of the policy, or give it another one\n",
        args.tenant
    ))
}

fn dry(
    args: &Attach,
    virsh: &Virsh,
    port: &Stated,
    plan: &Plan,
    change: Option<&Change>,
    wanted: &Wanted,
) -> String {
    let mut text = match change {
        Some(change) if args.write => format!("would write: {}\n", change.words(&args.tenant)),
        _ if port.is_machine => String::new(),
        change => what_is_left(args, wanted, change),
    };
    if args.write && !args.no_reload {
        let force = if args.force { " --force" } else { "" };
        text.push_str(&format!("would run: plimsoll reload{force} --socket {}\n", args.socket.display()));
    }
    for flag in plan.flags() {
        text.push_str(&format!("would run: {}\n", virsh.line("attach-device", flag)));
    }
    text + &format!("the device:\n{}", port.xml())
}

fn undoing(args: &Attach, name: &str) -> String {
    let connect = args.connect.as_ref().map_or_else(String::new, |uri| format!(" --connect {uri}"));
    let policy =
        args.policy.as_ref().map_or_else(String::new, |file| format!(" --policy {}", file.display()));
    let path = args.path.as_ref().map_or_else(String::new, |path| format!(" --path {}", path.display()));
    format!("plimsoll attach --domain {name} --tenant {}{policy}{path}{connect} --detach", args.tenant)
}

/// The tenant's port and the machine's interface.
#[derive(Debug)]
struct Stated {
    socket: String,
    mac: String,
    /// Whether the policy gives the tenant this port already.
    is_machine: bool,
}

impl Stated {
    /// The socket is the policy's, or the one that is asked for; the hardware address is the policy's, or that of the machine's interface
    /// there, or one that machine and tenant give.
    fn read(args: &Attach, domain: &Domain) -> Result<Self, Failure> {
        let found = args.policy.as_deref().map(|file| port_in(file, &args.tenant)).transpose()?.flatten();
        let is_machine = found.is_some();
        let (socket, mac) = match (found, &args.path) {
            (Some((socket, mac)), None) => (socket, mac),
            (Some((socket, mac)), Some(path)) if socket == *path => (socket, mac),
            (Some((socket, _)), Some(path)) => {
                let (stated, wanted) = (socket.display(), path.display());
                let why = format!(
                    "the policy gives tenant `{}` the socket {stated}, not {wanted}; leave `--path` out",
                    args.tenant
                );
                return Err(Failure::Wrong(why));
            }
            (None, Some(path)) => (path.clone(), None),
            (None, None) => (PathBuf::from(format!("/run/plimsoll/{}.sock", args.tenant)), None),
        };
        let socket = std::path::absolute(&socket).map_err(|error| Failure::io(socket.display(), &error))?;
        let socket = socket.to_str().map(str::to_owned);
        let socket = socket.ok_or_else(|| Failure::Wrong("libvirt takes paths in UTF-8 only".to_owned()))?;
        let has = domain.interface(&socket).map(|interface| interface.mac);
        let mac = mac.or(has).unwrap_or_else(|| mac_of(&domain.uuid, &args.tenant));
        Ok(Self { socket, mac, is_machine })
    }

    fn xml(&self) -> String {
        xml::interface(&self.socket, &self.mac)
    }
}

/// The socket and the hardware address of a tenant whose port is a virtual machine's.
fn port_in(file: &Path, tenant: &str) -> Result<Option<(PathBuf, Option<String>)>, Failure> {
    let checked = reader::load(&file.display().to_string());
    let checked = checked.map_err(|errors| Failure::Policy(Box::new(errors)))?;
    let found = checked.config.tenants.iter().find(|found| found.name == tenant);
    Ok(match found.map(|tenant| &tenant.port) {
        Some(Port::VhostUser { socket, mac, .. }) => Some((socket.clone(), mac.map(|mac| mac.to_string()))),
        _ => None,
    })
}

/// A hardware address of QEMU's, for this machine as this tenant.
fn mac_of(uuid: &str, tenant: &str) -> String {
    let digest = Sha256::digest(format!("{uuid} {tenant}"));
    format!("52:54:00:{:02x}:{:02x}:{:02x}", digest[0], digest[1], digest[2])
}

/// libvirt, by its shell.
#[derive(Debug)]
struct Virsh {
    connect: Option<String>,
    domain: String,
}

impl Virsh {
    fn words(&self) -> Vec<String> {
        let connect = self.connect.iter().flat_map(|uri| ["--connect".to_owned(), uri.clone()]);
        std::iter::once("virsh".to_owned()).chain(connect).collect()
    }

    /// The command as an operator runs it.
    fn line(&self, what: &str, flag: &str) -> String {
        format!("{} {what} {} device.xml {flag}", self.words().join(" "), self.domain)
    }

    fn read(&self, options: &[&str]) -> Result<Domain, Failure> {
        let text = self.run(&[&["dumpxml", "--domain", &self.domain], options].concat())?;
        Domain::read(&text).map_err(|why| {
            Failure::Failed(format!("`virsh dumpxml {}` is not understood: {why}", self.domain))
        })
    }

    /// Attaches or detaches a device.
    fn change(&self, what: &str, device: &str, flag: &str) -> Result<(), Failure> {
        let write = || {
            let mut file = tempfile::NamedTempFile::new()?;
            file.write_all(device.as_bytes())?;
            Ok(file)
        };
        let file = write().map_err(|error| Failure::io("write the device's file", &error))?;
        let path = file.path().display().to_string();
        self.run(&[what, "--domain", &self.domain, "--file", &path, flag]).map(drop)
    }

    fn run(&self, words: &[&str]) -> Result<String, Failure> {
        let own = self.words();
        let mut command = Command::new(&own[0]);
        let done = command.args(&own[1..]).args(words).env("LC_ALL", "C").output();
        let done = done.map_err(|error| {
            Failure::Failed(format!("cannot run `virsh`, which Debian has in libvirt-clients: {error}"))
        })?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&done.stderr);
        let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Err(Failure::Failed(format!("`virsh {}`: {}", words.join(" "), said.join("; "))))
    }
}
