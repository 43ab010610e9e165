//! Arguments of `plimsoll fleet`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use plimsoll_units::{BitRate, Span};

use super::SOCKET;

/// `plimsoll fleet`.
#[derive(Debug, Subcommand)]
pub(crate) enum Fleet {
    /// Make a fleet in a directory, or change its settings
    Init(FleetInit),
    /// Add a host to the fleet, or change what the fleet knows of it
    Join(FleetJoin),
    /// Take a host out of the fleet
    #[command(after_help = LEAVE_EXAMPLES)]
    Leave(FleetNamed),
    /// List hosts: whether they are heard, what they have promised, and which policy is in force
    #[command(after_help = HOSTS_EXAMPLES)]
    Hosts(FleetList),
    /// List tenants: where they are, their addresses and envelopes
    #[command(after_help = TENANTS_EXAMPLES)]
    Tenants(FleetList),
    /// Add a tenant to the fleet, or change it
    Add(FleetAdd),
    /// Take a tenant out of the fleet
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove(FleetNamed),
    /// Move a tenant to another host
    Move(FleetMove),
    /// Say which hosts can promise a tenant its minimum
    Place(FleetPlace),
    /// Put, show and list policies
    #[command(subcommand)]
    Policy(FleetPolicy),
    /// Show what a policy would change at each host
    Plan(FleetPlan),
    /// Bring a policy to some hosts first, and to the others once promises have held there
    Apply(FleetApply),
    /// Give hosts back the policy that they had before
    #[command(after_help = ROLLBACK_EXAMPLES)]
    Rollback(FleetNamed),
    /// List a policy's versions, and how the last one came to hosts
    History(FleetHistory),
    /// Change the key of the fleet without losing a frame
    RotateKey(FleetRotate),
    /// Have this host do what the directory says, until stopped
    Agent(FleetAgent),
}

/// Where the directory is.
#[derive(Debug, clap::Args)]
pub(crate) struct At {
    /// The fleet's directory: a file, or etcd's URLs separated by commas, of which the last may end with the fleet's name
    #[arg(long, value_name = "FILE|URLS", env = "PLIMSOLL_DIRECTORY")]
    pub(crate) directory: String,
    /// The authority that signed the certificates of etcd's servers (PEM); needed for https
    #[arg(long, value_name = "FILE", env = "PLIMSOLL_ETCD_CA")]
    pub(crate) ca: Option<PathBuf>,
    /// This client's certificate for etcd (PEM)
    #[arg(long, value_name = "FILE", env = "PLIMSOLL_ETCD_CERT", requires = "cert_key")]
    pub(crate) cert: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", env = "PLIMSOLL_ETCD_KEY", requires = "cert")]
    pub(crate) cert_key: Option<PathBuf>,
    /// The user in etcd
    #[arg(long, value_name = "NAME", env = "PLIMSOLL_ETCD_USER", requires = "password_file")]
    pub(crate) user: Option<String>,
    /// A file with that user's password
    #[arg(long, value_name = "FILE", env = "PLIMSOLL_ETCD_PASSWORD_FILE", requires = "user")]
    pub(crate) password_file: Option<PathBuf>,
}

/// A command on a host, tenant or policy.
#[derive(Debug, clap::Args)]
pub(crate) struct FleetNamed {
    /// Its name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) at: At,
}

/// `plimsoll fleet rotate-key`.
#[derive(Debug, clap::Args)]
#[command(after_help = ROTATE_EXAMPLES)]
pub(crate) struct FleetRotate {
    /// The file with the new key; it must be at each host already
    #[arg(value_name = "FILE")]
    pub(crate) key: PathBuf,
    /// How long hosts may take for each of the three steps
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(crate) timeout: Span,
    #[command(flatten)]
    pub(crate) at: At,
}

/// A command that prints a table.
#[derive(Debug, clap::Args)]
pub(crate) struct FleetList {
    #[command(flatten)]
    pub(crate) at: At,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// How frames are wrapped.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Kind {
    /// Geneve (RFC 8926)
    Geneve,
    /// VXLAN (RFC 7348)
    Vxlan,
}

/// `plimsoll fleet init`.
#[derive(Debug, clap::Args)]
#[command(after_help = INIT_EXAMPLES)]
pub(crate) struct FleetInit {
    /// A network of tenants and its number (VNI); may be given several times [default: tenants=1]
    #[arg(long, value_name = "NAME=VNI", value_parser = network)]
    pub(crate) network: Vec<(String, u32)>,
    /// How frames travel between hosts [default: geneve]
    #[arg(long, value_enum)]
    pub(crate) kind: Option<Kind>,
    /// Have receivers tell senders what they may send; their messages are sealed with the key in this file, which is the same at
    /// all hosts
    #[arg(long, value_name = "FILE")]
    pub(crate) feedback_key: Option<PathBuf>,
    /// Another key of `overlay`, the same at all hosts: `dscp=46`, `sealed=true`
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::setting)]
    pub(crate) set: Vec<(String, String)>,
    /// How long a host counts as alive after its agent was last heard [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub(crate) lease: Option<Span>,
    /// How long after that its tenants may be placed elsewhere; `never`: they stay its own [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = or_never)]
    pub(crate) free_after: Option<Never>,
    /// Change the stated settings of the fleet that is there; all others stay
    #[arg(long)]
    pub(crate) update: bool,
    #[command(flatten)]
    pub(crate) at: At,
}

/// A time, or `never`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Never(pub(crate) Option<Span>);

/// `plimsoll fleet join`.
#[derive(Debug, clap::Args)]
#[command(after_help = JOIN_EXAMPLES)]
pub(crate) struct FleetJoin {
    /// The host's name in the fleet
    pub(crate) host: String,
    /// Its address on the underlay
    #[arg(long, value_name = "IP")]
    pub(crate) address: IpAddr,
    /// The operator's part of its policy file: `uplink`, `api`, `engine` and the like, without `tenants` and `overlay`
    #[arg(long, value_name = "FILE")]
    pub(crate) template: PathBuf,
    /// The fleet's policy that it uses, at its newest version; without it, the one that it has
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// Another key of the host in `overlay.hosts`: `mac`, `channel`, `fallback`
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::setting)]
    pub(crate) set: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) at: At,
}

/// `plimsoll fleet add`.
#[derive(Debug, clap::Args)]
#[command(after_help = ADD_EXAMPLES)]
pub(crate) struct FleetAdd {
    /// The tenant's name
    pub(crate) tenant: String,
    /// Its hardware address; may be given several times, of which the first is its interface's
    #[arg(long, value_name = "MAC", required = true)]
    pub(crate) mac: Vec<String>,
    /// Its port, as in a policy file; `{host}` and `{tenant}` stand for the names
    #[arg(long, value_name = "PORT")]
    pub(crate) port: String,
    /// The host where it is placed; without it nowhere
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Option<String>,
    /// Its network, where the fleet has several
    #[arg(long, value_name = "NAME")]
    pub(crate) network: Option<String>,
    /// An IP address with the length of its network, which it is held to and its TAP gets; may be given several times
    #[arg(long, value_name = "IP/LENGTH")]
    pub(crate) address: Vec<String>,
    /// What it gets at least
    #[arg(long, value_name = "RATE")]
    pub(crate) min: Option<BitRate>,
    /// What it gets at most
    #[arg(long, value_name = "RATE")]
    pub(crate) max: Option<BitRate>,
    /// Its share beside others
    #[arg(long, value_name = "N")]
    pub(crate) weight: Option<u32>,
    /// A file with a policy of its own
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// Another key of the tenant in a policy file: `delay={p99: 1ms}`
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::setting)]
    pub(crate) set: Vec<(String, String)>,
    /// Replace the tenant that is there
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) at: At,
}

/// `plimsoll fleet move`.
#[derive(Debug, clap::Args)]
#[command(after_help = MOVE_EXAMPLES)]
pub(crate) struct FleetMove {
    /// The tenant
    pub(crate) tenant: String,
    /// The host that it moves to
    #[arg(required_unless_present = "nowhere", conflicts_with = "nowhere")]
    pub(crate) to: Option<String>,
    /// Take it from its host, and place it nowhere
    #[arg(long)]
    pub(crate) nowhere: bool,
    /// Also from a host that is silent and may still serve it
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) at: At,
}

/// `plimsoll fleet place`.
#[derive(Debug, clap::Args)]
#[command(after_help = PLACE_EXAMPLES)]
pub(crate) struct FleetPlace {
    /// The tenant, which may be a new one
    pub(crate) tenant: String,
    /// What it is to get at least; without it, what the fleet says of the tenant
    #[arg(long, value_name = "RATE")]
    pub(crate) min: Option<BitRate>,
    /// Also list the hosts that cannot promise it, and why
    #[arg(long)]
    pub(crate) explain: bool,
    #[command(flatten)]
    pub(crate) at: At,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plimsoll fleet policy`.
#[derive(Debug, Subcommand)]
pub(crate) enum FleetPolicy {
    /// Put a policy's next version: keys such as `policy` and `limits`, checked for each host that uses the policy
    Put(FleetPut),
    /// Print the text of a policy
    #[command(after_help = POLICY_EXAMPLES)]
    Show(FleetShow),
    /// List policies, and the hosts that use them
    #[command(after_help = POLICY_EXAMPLES)]
    List(FleetList),
}

/// `plimsoll fleet policy put`.
#[derive(Debug, clap::Args)]
#[command(after_help = POLICY_EXAMPLES)]
pub(crate) struct FleetPut {
    /// The policy's name
    pub(crate) name: String,
    /// The file with its text
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) at: At,
}

/// `plimsoll fleet policy show`.
#[derive(Debug, clap::Args)]
pub(crate) struct FleetShow {
    /// The policy's name
    pub(crate) name: String,
    /// The version; without it the newest
    #[arg(long, value_name = "N")]
    pub(crate) version: Option<u64>,
    #[command(flatten)]
    pub(crate) at: At,
}

/// `plimsoll fleet plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = PLAN_EXAMPLES)]
pub(crate) struct FleetPlan {
    /// The policy
    pub(crate) policy: String,
    /// The version; without it the newest
    #[arg(long, value_name = "N")]
    pub(crate) version: Option<u64>,
    /// A host that is to use it; may be given several times. Without it, the hosts that use the policy, or all if none does
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Vec<String>,
    #[command(flatten)]
    pub(crate) at: At,
}

/// `plimsoll fleet apply`.
#[derive(Debug, clap::Args)]
#[command(after_help = APPLY_EXAMPLES)]
pub(crate) struct FleetApply {
    #[command(flatten)]
    pub(crate) plan: FleetPlan,
    /// How many hosts try it first: a number, or a share such as `10%`
    #[arg(long, value_name = "N|SHARE", default_value = "1")]
    pub(crate) canary: String,
    /// How long promises must hold there before the other hosts get it
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(crate) bake: Span,
    /// Begin, and do not wait for the end: the hosts' agents see to it
    #[arg(long)]
    pub(crate) no_wait: bool,
}

/// `plimsoll fleet history`.
#[derive(Debug, clap::Args)]
#[command(after_help = HISTORY_EXAMPLES)]
pub(crate) struct FleetHistory {
    /// The policy
    pub(crate) policy: String,
    #[command(flatten)]
    pub(crate) at: At,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plimsoll fleet agent`.
#[derive(Debug, clap::Args)]
#[command(after_help = AGENT_EXAMPLES)]
pub(crate) struct FleetAgent {
    /// This host's name in the fleet
    #[arg(long, value_name = "NAME")]
    pub(crate) host: String,
    /// The policy file of this host's daemon, which the agent writes
    #[arg(long, value_name = "FILE", default_value = "/etc/plimsoll/plimsoll.yaml")]
    pub(crate) file: PathBuf,
    /// The daemon's API socket
    #[arg(long, value_name = "PATH", default_value = SOCKET, env = "PLIMSOLL_SOCKET")]
    pub(crate) socket: PathBuf,
    #[command(flatten)]
    pub(crate) at: At,
}

fn network(text: &str) -> Result<(String, u32), String> {
    let (name, number) = text.split_once('=').ok_or("write `NAME=VNI`")?;
    Ok((name.to_owned(), number.parse().map_err(|_| format!("`{number}` is no number"))?))
}

fn or_never(text: &str) -> Result<Never, String> {
    match text {
        "never" => Ok(Never(None)),
        time => time
            .parse()
            .map(|span| Never(Some(span)))
            .map_err(|error: plimsoll_units::UnitError| error.to_string()),
    }
}

const INIT_EXAMPLES: &str = "Examples:
  plimsoll fleet init --directory /srv/fleet.json
  export PLIMSOLL_DIRECTORY=https://10.0.0.1:2379,https://10.0.0.2:2379/prod PLIMSOLL_ETCD_CA=/etc/plimsoll/etcd-ca.pem
  plimsoll fleet init --network tenants=7 --feedback-key /etc/plimsoll/fleet.key --free-after 60s";

const ROTATE_EXAMPLES: &str = "Examples:
  plimsoll fleet rotate-key /etc/plimsoll/fleet-2.key

Make the key once (`head -c 32 /dev/urandom >KEY; chmod 600 KEY`) and copy it to all hosts first. If a host does not take a step, the \
command ends, all hosts go on with the keys that they have, and the same command goes on from there.";

const JOIN_EXAMPLES: &str = "Examples:
  plimsoll fleet join a --address 192.0.2.1 --template host.yaml
  plimsoll fleet join a --address 192.0.2.1 --template host.yaml --policy gold

The policy that follows is checked first. Run it again to change the address, the template or the policy. Then start \
`plimsoll fleet agent --host a` and `plimsoll run /etc/plimsoll/plimsoll.yaml` at the host.";

const LEAVE_EXAMPLES: &str = "Examples:
  plimsoll fleet leave a

A host that still has tenants does not leave: move them first.";

const HOSTS_EXAMPLES: &str = "Examples:
  plimsoll fleet hosts
  plimsoll fleet hosts --json | jq -r '.hosts[] | select(.state != \"alive\") | .name'

A host is `alive` while its agent renews its lease, `silent` after that, and `freed` once its tenants may be placed elsewhere.";

const TENANTS_EXAMPLES: &str = "Examples:
  plimsoll fleet tenants
  plimsoll fleet tenants --json | jq '.tenants[] | {name, host}'";

const ADD_EXAMPLES: &str = "Examples:
  plimsoll fleet add shop --host a --mac 02:00:00:00:0a:01 --address 10.7.0.1/24 --min 2Gbps \\
      --port '{tap: {netns: \"{tenant}\", name: eth0}}'
  plimsoll fleet add batch --mac 02:00:00:00:0b:01 --port '{vhost_user: \"/run/plimsoll/{tenant}.sock\"}' --max 5Gbps";

const REMOVE_EXAMPLES: &str = "Examples:
  plimsoll fleet remove shop";

const MOVE_EXAMPLES: &str = "Examples:
  plimsoll fleet move shop b
  plimsoll fleet move shop --nowhere";

const PLACE_EXAMPLES: &str = "Examples:
  plimsoll fleet place shop --min 2Gbps
  plimsoll fleet place shop --min 2Gbps --explain

A host can promise a minimum if its agent is heard, and if the minima of all its tenants together are no more than the rate of \
its uplink. Exit status 1 says that none can.";

const POLICY_EXAMPLES: &str = "Examples:
  plimsoll fleet policy put gold gold.yaml
  plimsoll fleet policy show gold --version 3
  plimsoll fleet policy list

No host gets a version before `plimsoll fleet apply`.";

const PLAN_EXAMPLES: &str = "Examples:
  plimsoll fleet plan gold
  plimsoll fleet plan gold --host a --host b";

const APPLY_EXAMPLES: &str = "Examples:
  plimsoll fleet apply gold --canary 1 --bake 60s
  plimsoll fleet apply gold --canary 10% --bake 10min
  plimsoll fleet apply gold --host a --host b

When a canary host breaks a promise to a tenant (`plimsoll slo`), or cannot put the policy in force, all hosts get back what they \
had. Exit status 1 says so.";

const ROLLBACK_EXAMPLES: &str = "Examples:
  plimsoll fleet rollback gold

Hosts get back the policy that they had before the last `apply` of this one.";

const HISTORY_EXAMPLES: &str = "Examples:
  plimsoll fleet history gold";

const AGENT_EXAMPLES: &str = "Examples:
  plimsoll fleet agent --host a
  plimsoll fleet agent --host a --file /etc/plimsoll/plimsoll.yaml --socket /run/plimsoll/api.sock

The agent writes the policy file, and has the daemon read it. When the directory does not answer, the host goes on with the file \
as it is.";
