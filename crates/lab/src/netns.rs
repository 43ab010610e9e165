//! Network namespaces by name, in the lab's private `/run/netns`.
//!
//! Why: each tenant looks like a separate host to Linux, with its own devices, routes, sockets and TCP settings.
//! From: ip-netns(8); the names are those that a policy's ports use.
//! Not here: the devices between them (`world`).

use crate::command;
use crate::error::LabError;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::{self, File};

/// A network namespace; removed when dropped.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes the namespace, with TCP settings that do not depend on the host's. Its loopback interface is down.
    ///
    /// Works like `ip netns add`, but on a thread rather than in a process, as a lab may need hundreds.
    pub fn create(name: &str) -> Result<Self, LabError> {
        let path = path(name);
        let failed = |e: std::io::Error| LabError::io(format!("make namespace {path}"), e);
        File::create_new(&path).map_err(failed)?;
        let netns = Self { name: name.to_owned() };
        on_a_thread(name, || {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|e| failed(e.into()))?;
            let none: Option<&str> = None;
            mount(Some("/proc/thread-self/ns/net"), path.as_str(), none, MsFlags::MS_BIND, none)
                .map_err(|e| failed(e.into()))?;
            set_tcp_defaults();
            Ok(())
        })?;
        Ok(netns)
    }

    /// The namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` commands inside, as one batch.
    pub fn ip(&self, lines: &[String]) -> Result<(), LabError> {
        command::run("ip", &["-n", &self.name, "-batch", "-"], &lines.join("\n")).map(drop)
    }

    /// Runs `tc` commands inside, as one batch.
    pub fn tc(&self, lines: &[String]) -> Result<(), LabError> {
        command::run("tc", &["-n", &self.name, "-batch", "-"], &lines.join("\n")).map(drop)
    }

    /// The output of `tc -s -j` inside.
    pub fn tc_json(&self, args: &[&str]) -> Result<serde_json::Value, LabError> {
        let mut words = vec!["-n", self.name.as_str(), "-s", "-j"];
        words.extend(args);
        let text = command::run("tc", &words, "")?;
        serde_json::from_str(&text)
            .map_err(|e| LabError::Tool { command: "tc -s -j".to_owned(), message: e.to_string() })
    }

    /// Reads a file whose contents depend on the namespace.
    pub fn read(&self, path: &str) -> Result<String, LabError> {
        within(&self.name, || fs::read_to_string(path))?.map_err(|e| LabError::io(format!("read {path}"), e))
    }

    /// Writes a setting below `/proc/sys` that belongs to the namespace.
    pub fn set(&self, key: &str, value: &str) -> Result<(), LabError> {
        let written = within(&self.name, || fs::write(format!("/proc/sys/{key}"), value))?;
        written.map_err(|e| LabError::io(format!("set {key} in namespace {}", self.name), e))
    }

    /// A counter of the namespace's `/proc/net/snmp`, such as `Tcp:` `RetransSegs`; 0 where it does not exist.
    pub fn counter(&self, protocol: &str, name: &str) -> Result<u64, LabError> {
        Ok(counted(&self.read("/proc/thread-self/net/snmp")?, protocol, name).unwrap_or(0))
    }

    /// Turns off segmentation and receive offloads of a device, so that each packet is one frame.
    pub fn offloads_off(&self, device: &str) -> Result<(), LabError> {
        let net = format!("--net=/run/netns/{}", self.name);
        let features = ["tso", "off", "gso", "off", "gro", "off", "tx-udp-segmentation", "off"];
        let mut args = vec![net.as_str(), "ethtool", "-K", device];
        args.extend(features);
        // Fails for devices without UDP segmentation: then it is left out.
        command::run("nsenter", &args, "").or_else(|_| command::run("nsenter", &args[..10], "")).map(drop)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let path = path(&self.name);
        // Processes still inside keep the namespace alive until they end.
        let _ = umount2(path.as_str(), MntFlags::MNT_DETACH);
        let _ = fs::remove_file(path);
    }
}

/// Gives every system the same start, in the calling thread's namespace: CUBIC, no metrics of earlier connections, and no
/// IPv6 packets of the kernel's own.
fn set_tcp_defaults() {
    let settings = [
        ("net/ipv4/tcp_congestion_control", "cubic"),
        ("net/ipv4/tcp_no_metrics_save", "1"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/default/rp_filter", "0"),
        ("net/ipv6/conf/default/accept_dad", "0"),
        ("net/ipv6/conf/default/router_solicitations", "0"),
        ("net/ipv6/conf/default/addr_gen_mode", "1"),
    ];
    for (key, value) in settings {
        // Fails where a kernel lacks the setting: without IPv6, or with CUBIC as its only choice.
        let _ = fs::write(format!("/proc/sys/{key}"), value);
    }
}

/// A value of `/proc/net/snmp`, whose lines come in pairs: names, then values.
fn counted(text: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let (names, values) = (lines.next()?, lines.next()?);
    let column = names.split_whitespace().position(|column| column == name)?;
    values.split_whitespace().nth(column)?.parse().ok()
}

fn path(name: &str) -> String {
    format!("/run/netns/{name}")
}

/// Moves the calling thread into the named namespace.
pub fn enter(name: &str) -> Result<(), LabError> {
    let path = path(name);
    let file = File::open(&path).map_err(|e| LabError::io(format!("open {path}"), e))?;
    setns(file, CloneFlags::CLONE_NEWNET).map_err(|e| LabError::io(format!("enter {path}"), e))
}

/// Runs `work` on a thread inside the named namespace and returns its result.
pub fn within<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
    on_a_thread(name, || enter(name).map(|()| work()))
}

fn on_a_thread<T: Send>(
    name: &str,
    work: impl FnOnce() -> Result<T, LabError> + Send,
) -> Result<T, LabError> {
    std::thread::scope(|scope| {
        let panicked = |_| Err(LabError::Scenario(format!("a helper thread in `{name}` panicked")));
        scope.spawn(work).join().unwrap_or_else(panicked)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_column() {
        let text = "Ip: A\nIp: 1\nTcp: RtoMin InSegs RetransSegs OutRsts\nTcp: 200 7 42 1\nUdp: X\nUdp: 3\n";
        assert_eq!(counted(text, "Tcp:", "RetransSegs"), Some(42));
        assert_eq!(counted(text, "Udp:", "X"), Some(3));
        assert_eq!(counted("nothing", "Tcp:", "RetransSegs"), None);
    }
}
