//! `plimsoll attach`: makes a container's own interface, or a new one of a virtual machine, the port of a tenant.
//!
//! Why: a container that runs has its `eth0`, address and connections; nothing inside needs to change.
//! From: veth(4): what the container sends through `eth0` arrives at the pair's other end, on the host.
//! Not here: opening the port (the daemon, by its policy), finding the ends (`ends`), changing the file (`change`), machines (`domain`).
//! Invariant: nothing is changed before the whole plan is checked; a step that fails puts back what was changed before.

mod change;
mod domain;
mod edit;
pub(crate) mod ends;

use std::process::Command;

use plimsoll_daemon::Client;

use crate::args::{Ask, Attach, Reload};
use crate::failure::{Failure, print};
use crate::live;
use change::Change;
use edit::Wanted;
use ends::Ends;

/// Attaches a container or a virtual machine to a tenant.
pub(crate) fn attach(args: &Attach) -> Result<(), Failure> {
    if let Some(name) = &args.domain {
        return domain::attach(args, name);
    }
    let ends = ends::find(args)?;
    let wanted = Wanted::interface(&ends.host, &ends.addresses);
    let change = args.policy.as_deref().map(|file| Change::new(file, &args.tenant, &wanted)).transpose()?;
    print(&introduction(&ends))?;
    if args.dry_run {
        return print(&dry(args, &ends, &wanted, change.as_ref()));
    }
    let reloads = args.write && !args.no_reload;
    if reloads {
        // A daemon that does not run is told before anything changes.
        Client::new(&args.socket).text("GET", "/v1/health")?;
    }
    // A rule of an earlier time would be there twice.
    let _ = run(&rule("-D", &ends.host));
    take_over(&ends, &mut |line| say(&format!("{line}\n")))?;
    match change {
        Some(change) if args.write => {
            change.write(&change.edited.text).inspect_err(|_| put_back(&ends))?;
            say(&format!("{}\n", change.words(&args.tenant)));
            if reloads {
                reload(args).inspect_err(|failure| {
                    if matches!(failure, Failure::PipeClosed) {
                        return; // the daemon has obeyed
                    }
                    // The first failure is the one to report.
                    let _ = change.write(&change.original);
                    put_back(&ends);
                })?;
            }
        }
        change => print(&what_is_left(args, &wanted, change.as_ref()))?,
    }
    print(&format!("to undo this: {}\n{}", undoing(&ends).join("; "), unknown_bridge(&ends)))
}

/// Takes the host's end over; `done` hears each command that was run. A step that fails puts back what was changed before.
pub(crate) fn take_over(ends: &Ends, done: &mut dyn FnMut(&str)) -> Result<(), Failure> {
    steps(ends).iter().try_for_each(|step| step.take(done)).inspect_err(|_| put_back(ends))
}

/// Prints between two changes: a reader that has gone (`| head`) must not end them halfway.
fn say(text: &str) {
    let _ = print(text);
}

fn introduction(ends: &Ends) -> String {
    let bridge = match (&ends.bridge, ends.before().bridge) {
        (Some(bridge), _) => format!("in bridge `{bridge}`"),
        (None, Some(before)) => format!("in no bridge now; it was in `{before}` when it was first attached"),
        (None, None) => "in no bridge".to_owned(),
    };
    format!("`{}` there is `{}` here, {bridge}\n", ends.inside, ends.host)
}

/// All that would be done.
fn dry(args: &Attach, ends: &Ends, wanted: &Wanted, change: Option<&Change>) -> String {
    let mut text: String = steps(ends).iter().map(Step::dry).collect();
    match change {
        Some(change) if args.write => {
            text.push_str(&format!("would write: {}\n", change.words(&args.tenant)));
            if !args.no_reload {
                let force = if args.force { " --force" } else { "" };
                text.push_str(&format!(
                    "would run: plimsoll reload{force} --socket {}\n",
                    args.socket.display()
                ));
            }
        }
        change => text.push_str(&what_is_left(args, wanted, change)),
    }
    text
}

/// What the operator has to do where the command does not change the policy.
fn what_is_left(args: &Attach, wanted: &Wanted, change: Option<&Change>) -> String {
    let wanted = wanted.keys();
    let place = match change {
        Some(change) if change.is_done() => {
            return format!("{} says so already; make the daemon read it: plimsoll reload\n", change.place());
        }
        Some(change) => format!("{}: ", change.place()),
        None => String::new(),
    };
    format!(
        "{place}the policy must say of tenant `{}`:\n  {wanted}\nthen make the daemon read it: plimsoll reload\n",
        args.tenant
    )
}

fn reload(args: &Attach) -> Result<(), Failure> {
    let ask = Ask { socket: args.socket.clone(), json: false };
    live::reload(&Reload { force: args.force, ask })
}

/// One command, as it is shown and run.
struct Step {
    words: Vec<String>,
    /// What to run if it fails.
    instead: Option<Vec<String>>,
    /// What follows if that fails too; none: the step must not fail.
    without: Option<String>,
}

/// Takes the host's end out of its bridge, and out of the reach of the host's network stack.
fn steps(ends: &Ends) -> Vec<Step> {
    let host = ends.host.as_str();
    let step = |line: String, without: Option<String>| Step { words: words(&line), instead: None, without };
    let mut steps = Vec::new();
    // First of all, as the command may be ended at any moment.
    let alias = ["ip", "link", "set", "dev", host, "alias", &ends.before().alias()];
    let forgotten = "another run of this command will not know how it was before".to_owned();
    steps.push(Step { words: alias.map(str::to_owned).to_vec(), instead: None, without: Some(forgotten) });
    if let (Some(bridge), Some(address)) = (&ends.bridge, &ends.bridge_address) {
        // Else the container keeps an address for its gateway that the bridge has no longer.
        steps.push(step(format!("ip link set dev {bridge} address {address}"), None));
    }
    if ends.bridge.is_some() {
        steps.push(step(format!("ip link set dev {host} nomaster"), None));
    }
    // Else the host answers for its own addresses, the gateway's among them, and the container goes past the engine.
    steps.push(step(format!("ip link set dev {host} arp off up"), None));
    let ipv6 = format!("the host may have an IPv6 address on `{host}`");
    steps.push(step(format!("sysctl -qw net/ipv6/conf/{host}/disable_ipv6=1"), Some(ipv6)));
    // Without it the next step fails, which is enough to say.
    steps.push(step(format!("tc qdisc replace dev {host} clsact"), Some(String::new())));
    // A packet socket gets each frame before this drops it.
    let filter =
        format!("tc filter replace dev {host} ingress protocol all pref 1 handle 1 matchall action drop");
    let heard = format!(
        "the host itself still takes packets that the container addresses to the hardware address of `{host}`, past the \
         tenant's limits"
    );
    steps.push(Step { instead: Some(rule("-I", host)), ..step(filter, Some(heard)) });
    steps
}

/// Removes what drops packets of an interface that has gone, where that does not go with it.
pub(crate) fn forget(host: &str) {
    let _ = run(&rule("-D", host)); // it may not be there
}

/// What drops IPv4 packets from an interface where the kernel has no such filter of `tc`.
fn rule(action: &str, host: &str) -> Vec<String> {
    ["iptables", "-t", "raw", action, "PREROUTING", "-i", host, "-j", "DROP"].map(str::to_owned).to_vec()
}

/// A command line's words; Linux has no spaces in names of interfaces. `''` is an empty word.
fn words(line: &str) -> Vec<String> {
    line.split(' ').map(|word| if word == "''" { String::new() } else { word.to_owned() }).collect()
}

/// Words as a shell takes them.
fn line(words: &[String]) -> String {
    let quoted = |word: &String| if word.contains(' ') { format!("'{word}'") } else { word.clone() };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

impl Step {
    fn dry(&self) -> String {
        let instead =
            self.instead.as_ref().map_or_else(String::new, |words| format!(" (or: {})", line(words)));
        format!("would run: {}{instead}\n", line(&self.words))
    }

    fn take(&self, done: &mut dyn FnMut(&str)) -> Result<(), Failure> {
        let tries = [Some(&self.words), self.instead.as_ref()];
        let mut said = Vec::new();
        for words in tries.into_iter().flatten() {
            match run(words) {
                Ok(()) => {
                    done(&line(words));
                    return Ok(());
                }
                Err(why) => said.push(format!("`{}`: {why}", line(words))),
            }
        }
        let said = said.join("; ");
        match self.without.as_deref() {
            Some("") => Ok(()),
            Some(without) => {
                eprintln!("warning: {said}; {without}");
                Ok(())
            }
            None => Err(Failure::Failed(format!("{said}; nothing has changed"))),
        }
    }
}

/// Runs a command; its standard error, or why it did not run.
fn run(words: &[String]) -> Result<(), String> {
    let (program, args) = words.split_first().ok_or("no command")?;
    let done = Command::new(program).args(args).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&done.stderr);
    let said = said.lines().next().unwrap_or("failed").trim().to_owned();
    if done.status.success() { Ok(()) } else { Err(said) }
}

/// The commands that undo [`steps`], also those of an earlier run; all but the last may find nothing to undo.
fn undoing(ends: &Ends) -> Vec<String> {
    let (host, before) = (&ends.host, ends.before());
    let master = before.bridge.as_ref().map_or_else(String::new, |bridge| format!(" master {bridge}"));
    let mut lines = vec![format!("tc qdisc del dev {host} clsact"), line(&rule("-D", host))];
    lines.extend(before.ipv6.then(|| format!("sysctl -qw net/ipv6/conf/{host}/disable_ipv6=0")));
    lines.push(format!("ip link set dev {host} alias ''"));
    lines.push(format!("ip link set dev {host} arp on{master}"));
    lines
}

/// What the commands that undo it lack, where the bridge is not known.
fn unknown_bridge(ends: &Ends) -> String {
    if ends.before().bridge.is_some() || ends.first.is_some() {
        return String::new();
    }
    format!(
        "`{}` was in no bridge when this command came to it. If its container is on a bridge network, find the bridge (`docker \
         network inspect`, `ip link show type bridge`), and add `master BRIDGE` to the last of these commands\n",
        ends.host
    )
}

/// Undoes what was done before a failure. Without a bridge the interface was attached before, and stays so.
fn put_back(ends: &Ends) {
    if ends.bridge.is_some() {
        give_back(ends);
    }
}

/// Undoes [`take_over`], also that of an earlier run.
pub(crate) fn give_back(ends: &Ends) {
    let mut lines = undoing(ends);
    let link = lines.pop().unwrap_or_default();
    let _: Vec<_> = lines.iter().map(|line| run(&words(line))).collect();
    if let Err(said) = run(&words(&link)) {
        eprintln!("warning: `{}` could not be put back: {said}; run: {link}", ends.host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(bridge: Option<&str>) -> Ends {
        Ends {
            inside: "eth0".into(),
            host: "veth1".into(),
            bridge: bridge.map(str::to_owned),
            first: None,
            ipv6: true,
            bridge_address: None,
            addresses: Vec::new(),
        }
    }

    #[test]
    fn the_hosts_end_leaves_its_bridge_and_stays_silent() {
        let words: Vec<_> = steps(&ends(Some("docker0"))).iter().map(|step| step.words.join(" ")).collect();
        assert!(words[0].starts_with("ip link set dev veth1 alias "), "how it was is kept before it changes");
        assert_eq!(words[1], "ip link set dev veth1 nomaster");
        assert_eq!(words[2], "ip link set dev veth1 arp off up");
        assert_eq!(steps(&ends(None)).len(), words.len() - 1, "no bridge to leave");
        let lowest = Ends { bridge_address: Some("02:00:00:00:00:01".into()), ..ends(Some("br0")) };
        let first = steps(&lowest)[1].words.join(" ");
        assert_eq!(first, "ip link set dev br0 address 02:00:00:00:00:01", "the bridge keeps its address");
        assert!(
            undoing(&ends(Some("docker0"))).concat().ends_with("ip link set dev veth1 arp on master docker0")
        );
        let first = ends::First { bridge: Some("docker0".into()), ipv6: true };
        let again = Ends { first: Some(first), ipv6: false, ..ends(None) };
        assert_eq!(undoing(&again), undoing(&ends(Some("docker0"))), "the same when it is run again");
        assert!(unknown_bridge(&again).is_empty() && unknown_bridge(&ends(None)).contains("master BRIDGE"));
    }
}
