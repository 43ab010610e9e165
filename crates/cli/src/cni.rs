//! `plimsoll-cni`: a container becomes a tenant, by the Container Network Interface.
//!
//! Why: container engines and Kubernetes attach each container by one call of a plugin; tenants come and go with them.
//! From: CNI 1.1 (containernetworking.github.io, "Specification"); `docs/containers.md`, "CNI".
//! Not here: devices and their addresses, which the daemon makes once it has the tenant's file; choosing addresses (IPAM plugins).
//! Invariant: a call that succeeds leaves a tenant that the daemon has in force, one that fails leaves nothing; a call that is
//! repeated changes nothing more.

mod answer;
mod attachment;
mod chain;
mod config;
mod device;
mod ipam;

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::attachment::{CNI, Folder, Server, tenant_in, veth_in};
use answer::{Code, Refusal};
use attachment::Attachment;
use config::{Call, Network};

/// The name under which this program is a plugin.
pub(crate) const NAME: &str = "plimsoll-cni";

/// Whether the program was started as a plugin.
pub(crate) fn is_called(program: Option<&OsStr>) -> bool {
    program.is_some_and(|program| std::path::Path::new(program).file_name() == Some(OsStr::new(NAME)))
}

/// Carries out the call that the environment and standard input state.
pub(crate) fn main() -> ExitCode {
    if std::env::var_os("CNI_COMMAND").is_none() {
        let words = "a CNI plugin, which container engines call (plimsoll's docs/containers.md, \"CNI\")";
        println!("{NAME} {}: {words}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let mut text = String::new();
    let read = io::stdin().take(LONGEST).read_to_string(&mut text);
    let read = read.map_err(|error| Refusal::new(Code::Io, format!("cannot read standard input: {error}")));
    let done = read.and_then(|_| execute(&text));
    let (said, code) = match done {
        Ok(answer) => (answer, ExitCode::SUCCESS),
        Err(refusal) => (Some(refusal.json(config::version_in(&text))), ExitCode::FAILURE),
    };
    // A runtime that has gone needs no answer.
    let _ = said.map_or(Ok(()), |said| writeln!(io::stdout(), "{said}"));
    code
}

fn execute(text: &str) -> Result<Option<Value>, Refusal> {
    let command = std::env::var("CNI_COMMAND").unwrap_or_default();
    if command == "VERSION" {
        let version = config::version_in(text);
        return Ok(Some(json!({ "cniVersion": version, "supportedVersions": config::VERSIONS })));
    }
    let network = Network::read(text)?;
    match command.as_str() {
        "ADD" => add(&network, &Call::read(true)?, text).map(Some),
        "DEL" => delete(&network, &Call::read(false)?, text).map(|()| None),
        "CHECK" => check(&network, &Call::read(true)?, text).map(|()| None),
        "GC" => collect(&network, text).map(|()| None),
        "STATUS" => status(&network, text).map(|()| None),
        other => Err(Refusal::new(Code::Environment, format!("CNI_COMMAND is `{other}`"))
            .details("this plugin knows ADD, DEL, CHECK, GC, STATUS and VERSION")),
    }
}

/// Makes the container a tenant, with an interface of its own or with the one that an earlier plugin of a chain has made.
fn add(network: &Network, call: &Call, text: &str) -> Result<Value, Refusal> {
    network.judge(call)?;
    let mut attachment = Attachment::new(network, call);
    let folder = Folder::lock(&network.tenants)?;
    sweep(network, &folder, text);
    // What an earlier call that was ended halfway has left.
    take_away(network, &folder, &attachment, text)?;
    attachment.pin()?;
    let in_force = |file: &str| {
        folder.write(&attachment.file, file)?;
        Ok(server(network).take_in(&attachment.file, &network.tenants)?)
    };
    let added = match network.previous() {
        Some(previous) => {
            chain::add(call, |ends| in_force(&attachment.text_of_veth(ends))).map(|()| previous.clone())
        }
        None => ipam::add(network, text).and_then(|given| {
            in_force(&attachment.text(network.mtu, &given)?)?;
            Ok(answer::added(network, call, &device::find(call)?, &given))
        }),
    };
    added.inspect_err(|_| {
        // The first failure is the one to report.
        let _ = take_away(network, &folder, &attachment, text);
    })
}

/// Removes the files of containers that have gone without a DEL, and gives their addresses back where they are of this network: the
/// IPAM plugins of others are not known here.
fn sweep(network: &Network, folder: &Folder, text: &str) {
    for swept in folder.sweep(CNI, &server(network).tenants_up(), attachment::has_gone) {
        let container = attachment::container_in(&swept).filter(|_| attachment::is_of(network, &swept));
        let released = container.map(|container| ipam::release(network, text, container));
        if let Some(Err(refusal)) = released {
            eprintln!("{NAME}: addresses of a container that has gone stay taken: {}", refusal.message);
        }
    }
}

/// Takes the tenant away, with its interface and its addresses; nothing that is not there is missed.
fn delete(network: &Network, call: &Call, text: &str) -> Result<(), Refusal> {
    if !network.tenants.exists() {
        return ipam::delete(network, text);
    }
    let folder = Folder::lock(&network.tenants)?;
    take_away(network, &folder, &Attachment::new(network, call), text)
}

fn take_away(network: &Network, folder: &Folder, attachment: &Attachment, text: &str) -> Result<(), Refusal> {
    let removed = folder.remove(&attachment.file)?;
    // An earlier call may have been ended between the file and the reload.
    if removed || server(network).has(&attachment.file) {
        server(network).forget();
    }
    attachment.unpin();
    ipam::delete(network, text)
}

fn server(network: &Network) -> Server {
    Server::at(&network.socket, CNI)
}

/// Reports what of an attachment is missing.
fn check(network: &Network, call: &Call, text: &str) -> Result<(), Refusal> {
    network.judge(call)?;
    let attachment = Attachment::new(network, call);
    let folder = Folder::lock(&network.tenants)?;
    let Some(file) = folder.read(&attachment.file)? else {
        let refusal =
            Refusal::new(Code::Unknown, format!("container `{}` is no tenant here", call.container));
        return Err(refusal.details(format!("{} has no file of it", network.tenants.display())));
    };
    let tenant = tenant_in(&file).unwrap_or_default();
    if server(network).stats()?.tenants.get(tenant).is_none_or(|port| port.port.is_none()) {
        return Err(Refusal::new(Code::Missing, format!("the port of tenant `{tenant}` is not up"))
            .details("`plimsoll status` says why"));
    }
    device::find(call)?.has(network.stated_addresses())?;
    device::has_routes(call, &network.stated_routes())?;
    if let Some(host) = veth_in(&file) {
        chain::check(call, host)?;
    }
    ipam::check(network, text)
}

/// Removes this network's tenants that are not listed as valid.
fn collect(network: &Network, text: &str) -> Result<(), Refusal> {
    let valid = network.valid()?;
    let folder = Folder::lock(&network.tenants)?;
    let valid = valid.iter().map(|valid| Attachment::of(network, &valid.container, &valid.interface).file);
    let gone = folder.keep_only(CNI, &valid.collect::<Vec<_>>(), |file| attachment::is_of(network, file))?;
    for (container, interface) in gone.iter().filter_map(|text| attachment::container_in(text)) {
        Attachment::of(network, container, interface).unpin();
    }
    if !gone.is_empty() {
        server(network).forget();
    }
    ipam::pass_on(network, text)
}

/// Whether a container could be attached now.
fn status(network: &Network, text: &str) -> Result<(), Refusal> {
    let not_available = |trouble| Refusal { code: Code::NotAvailable, ..Refusal::from(trouble) };
    server(network).health().map_err(not_available)?;
    Folder::lock(&network.tenants).map_err(not_available)?;
    ipam::pass_on(network, text)
}

/// Most bytes of a network's configuration.
const LONGEST: u64 = 1 << 20;
