//! Addresses, from the IPAM plugin that the network's configuration names.
//!
//! Why: who has which address is a job of its own, with plugins of its own (`host-local`, `dhcp`, `static`).
//! From: CNI 1.1, "Plugin delegation".
//! Not here: setting the addresses (the daemon).
//! Invariant: a refusal of the other plugin is passed on as it is; without a plugin there are no addresses.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;

use super::answer::{Code, Refusal};
use super::config::Network;
use crate::attachment::keys::or_null;

/// What an IPAM plugin gave a container.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Given {
    #[serde(default, deserialize_with = "or_null")]
    pub ips: Vec<Address>,
    #[serde(default, deserialize_with = "or_null")]
    pub routes: Vec<Route>,
    #[serde(default = "nothing")]
    pub dns: Value,
}

#[derive(Debug, Deserialize)]
pub(super) struct Address {
    /// With the length of its network.
    pub address: String,
    pub gateway: Option<String>,
}

#[derive(Clone, Debug, Deserialize, serde::Serialize)]
pub(super) struct Route {
    pub dst: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gw: Option<String>,
}

fn nothing() -> Value {
    Value::Object(serde_json::Map::new())
}

impl Given {
    /// The routes as a policy states them. A route without a gateway goes by that of an address of its family.
    pub(super) fn routes_in_policy(&self) -> Result<Vec<String>, Refusal> {
        let route = |route: &Route| {
            let of_family = |ip: &&Address| ip.address.contains(':') == route.dst.contains(':');
            let usual = self.ips.iter().filter(of_family).find_map(|ip| ip.gateway.as_ref());
            let network = if route.dst.ends_with("/0") { "default" } else { route.dst.as_str() };
            match route.gw.as_ref().or(usual) {
                Some(gateway) => Ok(format!("{network} via {gateway}")),
                None if network == "default" => {
                    let message = format!("the route to {} has no gateway", route.dst);
                    Err(Refusal::new(Code::Config, message).details("give `ipam` a `gateway`"))
                }
                None => Ok(network.to_owned()),
            }
        };
        self.routes.iter().map(route).collect()
    }
}

pub(super) fn add(network: &Network, text: &str) -> Result<Given, Refusal> {
    if network.ipam.kind.is_empty() {
        return Ok(Given { dns: nothing(), ..Given::default() });
    }
    let said = run(network, text)?;
    serde_json::from_str(&said).map_err(|error| {
        let message = format!("the IPAM plugin `{}` answers what is no result: {error}", network.ipam.kind);
        Refusal::new(Code::Ipam, message)
    })
}

pub(super) fn delete(network: &Network, text: &str) -> Result<(), Refusal> {
    delegate(network, text, Some("DEL"))
}

pub(super) fn check(network: &Network, text: &str) -> Result<(), Refusal> {
    delegate(network, text, None)
}

/// Has the plugin carry out a call that is not about one container. Those of before CNI 1.1 know none.
pub(super) fn pass_on(network: &Network, text: &str) -> Result<(), Refusal> {
    if network.is_from([1, 1]) { delegate(network, text, None) } else { Ok(()) }
}

/// Gives back the addresses of a container that has gone: its id and its interface.
pub(super) fn release(network: &Network, text: &str, container: (&str, &str)) -> Result<(), Refusal> {
    let (id, interface) = container;
    let call =
        [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", id), ("CNI_IFNAME", interface), ("CNI_NETNS", "")];
    if network.ipam.kind.is_empty() { Ok(()) } else { self::call(network, text, &call).map(drop) }
}

fn delegate(network: &Network, text: &str, command: Option<&str>) -> Result<(), Refusal> {
    let command = command.map(|command| ("CNI_COMMAND", command));
    if network.ipam.kind.is_empty() { Ok(()) } else { call(network, text, command.as_slice()).map(drop) }
}

fn run(network: &Network, text: &str) -> Result<String, Refusal> {
    call(network, text, &[])
}

/// Calls the plugin, by this call's own environment but for what is stated here.
fn call(network: &Network, text: &str, stated: &[(&str, &str)]) -> Result<String, Refusal> {
    let kind = &network.ipam.kind;
    let failed = |why: String| Refusal::new(Code::Ipam, format!("the IPAM plugin `{kind}` failed: {why}"));
    let mut plugin = Command::new(find(kind)?);
    plugin.envs(stated.iter().copied());
    // Plugins refuse arguments that they do not know.
    let args = std::env::var("CNI_ARGS").unwrap_or_default();
    let args: Vec<&str> = args.split(';').filter(|arg| !arg.starts_with(OURS)).collect();
    plugin.env("CNI_ARGS", args.join(";"));
    let started = plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let process = started.map_err(|error| failed(error.to_string()))?;
    let (status, said) = ended(process, text, PATIENCE).map_err(|error| failed(error.to_string()))?;
    if status.success() {
        return Ok(said);
    }
    let passed_on = serde_json::from_str(&said).ok().filter(|answer: &Value| answer["code"].is_u64());
    Err(Refusal { passed_on, ..failed(format!("{status}: {}", said.trim())) })
}

/// What a plugin says until it ends. One that takes longer than `patience` is killed, as no other call goes on meanwhile; what it has
/// started, and what holds its standard output or does not read its input, is not waited for.
fn ended(mut process: Child, text: &str, patience: Duration) -> io::Result<(ExitStatus, String)> {
    let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
    let text = text.to_owned();
    // A plugin that does not read its input says why at its end.
    std::thread::spawn(move || stdin.map_or(Ok(()), |mut stdin| stdin.write_all(text.as_bytes())));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut said = String::new();
        let read = stdout.map_or(Ok(0), |stdout| stdout.take(LONGEST).read_to_string(&mut said));
        tell.send(read.map(|_| said)) // or the call has given up
    });
    let (end, late) = (Instant::now() + patience, || {
        io::Error::other(format!("it takes longer than {} s", patience.as_secs_f64()))
    });
    let status = loop {
        match process.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            None => {
                process.kill()?;
                process.wait()?;
                return Err(late());
            }
        }
    };
    let left = end.saturating_duration_since(Instant::now());
    let said = told.recv_timeout(left).map_err(|_| {
        io::Error::other("it has ended, but a process that it started holds its standard output")
    })??;
    Ok((status, said))
}

/// The begin of arguments that are this plugin's.
const OURS: &str = "PLIMSOLL_";
/// Longest time that a plugin may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest answer.
const LONGEST: u64 = 1 << 20;

/// The plugin's program, in the folders of CNI_PATH.
fn find(kind: &str) -> Result<PathBuf, Refusal> {
    let folders = std::env::var_os("CNI_PATH").unwrap_or_default();
    let is_name = !kind.contains('/');
    let found = std::env::split_paths(&folders).map(|folder| folder.join(kind)).find(|file| file.is_file());
    found.filter(|_| is_name).ok_or_else(|| {
        let message = format!("there is no IPAM plugin `{kind}` in CNI_PATH ({})", folders.display());
        Refusal::new(Code::Config, message)
            .details("Debian has it in containernetworking-plugins, in /usr/lib/cni")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell as a plugin that may take a second.
    fn run(script: &str, text: &str) -> (io::Result<(ExitStatus, String)>, Duration) {
        let mut shell = Command::new("sh");
        let begun = Instant::now();
        let process = shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let done = ended(process.expect("a shell"), text, Duration::from_secs(1));
        (done, begun.elapsed())
    }

    #[test]
    fn a_plugin_is_waited_for_as_long_as_it_may_take_and_no_longer() {
        let (done, _) = run("cat; exit 3", "words");
        let (status, said) = done.expect("it ends");
        assert_eq!((status.code(), said.as_str()), (Some(3), "words"));
        // It does not end; it leaves a process that holds its output; it does not read more input than a pipe holds.
        let long = "x".repeat(1 << 20);
        for (script, text) in
            [("exec sleep 20", ""), ("sleep 20 & exit", ""), ("exec sleep 20", long.as_str())]
        {
            let (done, took) = run(script, text);
            assert!(done.is_err() && took < Duration::from_secs(10), "{script}: {took:?}");
        }
    }
}
