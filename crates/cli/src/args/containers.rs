//! Arguments of the commands that make containers and virtual machines tenants.
//!
//! Why: they are for other programs' objects, which have names and options of their own.
//! From: `docs/containers.md`, `docs/vhost-user.md`.
//! Not here: what the commands do (`attach`, `docker`).
//! Invariant: a command that changes a policy file can be told to print the change only.

use std::path::PathBuf;

use super::SOCKET;

/// `plimsoll attach`.
#[derive(Debug, clap::Args)]
#[command(after_help = ATTACH_EXAMPLES, group = clap::ArgGroup::new("whose").required(true))]
pub(crate) struct Attach {
    /// The container, by its name or id in Docker or Podman
    #[arg(long, value_name = "NAME", group = "whose")]
    pub(crate) container: Option<String>,
    /// The network namespace, by its name in `ip netns list`
    #[arg(long, value_name = "NAME", group = "whose")]
    pub(crate) netns: Option<String>,
    /// A process in the container
    #[arg(long, value_name = "PID", group = "whose", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
    /// The virtual machine, by its name, id or UUID in libvirt: it gets a new interface
    #[arg(long, value_name = "NAME", group = "whose")]
    pub(crate) domain: Option<String>,
    /// The tenant, by its name in the policy
    #[arg(long, value_name = "TENANT")]
    pub(crate) tenant: String,
    /// The interface inside the container, where it has several
    #[arg(long, value_name = "NAME", conflicts_with = "domain")]
    pub(crate) interface: Option<String>,
    /// Also give the machine the interface in its configuration, so that it has it after its next start
    #[arg(long, requires = "domain", conflicts_with_all = ["container", "netns", "pid", "detach"])]
    pub(crate) persistent: bool,
    /// Take the machine's interface away, now and in its configuration; the tenant keeps its port
    #[arg(long, requires = "domain", conflicts_with_all = ["container", "netns", "pid", "write"])]
    pub(crate) detach: bool,
    /// The socket of the machine's port [default: the policy's, or `/run/plimsoll/TENANT.sock`]
    #[arg(long, value_name = "PATH", requires = "domain", conflicts_with_all = ["container", "netns", "pid"])]
    pub(crate) path: Option<PathBuf>,
    /// The libvirt that the machine is in, such as `qemu:///system` [default: virsh's]
    #[arg(long, value_name = "URI", requires = "domain", conflicts_with_all = ["container", "netns", "pid"])]
    pub(crate) connect: Option<String>,
    /// Check the tenant's port in this policy file
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// Also write the tenant's port and addresses into the policy file, and make the daemon read it again
    #[arg(long, requires = "policy")]
    pub(crate) write: bool,
    /// Write the file only: the daemon does not run yet
    #[arg(long, requires = "write")]
    pub(crate) no_reload: bool,
    /// Also take a TAP away from the tenant, as `plimsoll reload --force`
    #[arg(long, requires = "write", conflicts_with = "no_reload")]
    pub(crate) force: bool,
    /// Print the commands and the change, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The daemon's API socket
    #[arg(long, value_name = "PATH", default_value = SOCKET, env = "PLIMSOLL_SOCKET")]
    pub(crate) socket: PathBuf,
}

/// `plimsoll docker-plugin`.
#[derive(Debug, clap::Args)]
#[command(after_help = DOCKER_PLUGIN_EXAMPLES)]
pub(crate) struct DockerPlugin {
    /// The folder that the daemon's policy includes: each container's tenant is a file there
    #[arg(long, value_name = "FOLDER", default_value = "/etc/plimsoll/tenants.d")]
    pub(crate) tenants: PathBuf,
    /// Where Docker finds the plugin; the file's name is that of the driver
    #[arg(long, value_name = "PATH", default_value = "/run/docker/plugins/plimsoll.sock")]
    pub(crate) listen: PathBuf,
    /// What is kept of Docker's networks and their endpoints
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/plimsoll/docker")]
    pub(crate) state: PathBuf,
    /// The daemon's API socket
    #[arg(long, value_name = "PATH", default_value = SOCKET, env = "PLIMSOLL_SOCKET")]
    pub(crate) socket: PathBuf,
}

const ATTACH_EXAMPLES: &str = "Examples:
  plimsoll attach --container shop --tenant shop --dry-run
  plimsoll attach --container shop --tenant shop --policy /etc/plimsoll/plimsoll.yaml --write
  plimsoll attach --netns shop --interface eth1 --tenant shop
  plimsoll attach --pid 4711 --tenant shop
  plimsoll attach --domain shop --tenant shop --policy /etc/plimsoll/plimsoll.yaml --write --persistent
  plimsoll attach --domain shop --tenant shop --policy /etc/plimsoll/plimsoll.yaml --detach

Run it on the host, as root. The other end of the container's veth leaves its bridge, and the policy must say \
`port: {af_packet: vethX}` of the tenant and state its `addresses`: `--write` changes that in the file and nothing else. A container that is \
started again has a new veth, so attach it again. docs/containers.md has whole examples, with the container's gateway.

A virtual machine of libvirt gets a new interface by vhost-user, while it runs, as the tenant's port: docs/vhost-user.md.

Exit status 2 says that the container, tenant or policy is wrong; nothing has changed then.";

const DOCKER_PLUGIN_EXAMPLES: &str = "Examples:
  plimsoll docker-plugin
  docker network create -d plimsoll --subnet 10.20.0.0/16 --gateway 10.20.0.1 -o plimsoll.max=2Gbps lan
  docker run --network lan IMAGE
  docker run --network name=lan,driver-opt=plimsoll.min=500Mbps IMAGE

It runs where Docker does, as root, until it is stopped; containers go on without it. docs/containers.md has the options and a unit \
for systemd.";
