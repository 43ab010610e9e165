//! DPDK's `dpdk-testpmd`, as a sender, a sink or a switch beside ours.
//!
//! Why: it is what DPDK's users measure their devices with, and Debian has it.
//! From: its interactive mode, which prints its ports' counters.
//! Not here: which devices it is given (`vnic`, `vhost`).
//! Invariant: it ends with the process that started it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// How long each side sends in a round, and before it counts.
pub const SPAN: Duration = Duration::from_millis(1_500);
pub const WARM_UP: Duration = Duration::from_millis(500);

/// How fast a counter of packets grows, after a warm-up.
pub fn per_second(mut count: impl FnMut() -> Result<u64>) -> Result<f64> {
    std::thread::sleep(WARM_UP);
    let (from, before) = (Instant::now(), count()?);
    std::thread::sleep(SPAN);
    let (span, after) = (from.elapsed(), count()?);
    ensure!(after > before, "no packet crossed");
    Ok((after - before) as f64 / span.as_secs_f64())
}

/// A `dpdk-testpmd` that is asked over its standard input; it ends when dropped.
pub struct Testpmd {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Testpmd {
    /// Its commands run on the core `asks`, its traffic on the other.
    pub fn start(asks: &str, devices: &[&str], mode: &[&str]) -> Result<Self> {
        Self::with(asks, devices, mode, (2_176, 16_384))
    }

    /// The same with buffers of another size and number.
    pub fn with(asks: &str, devices: &[&str], mode: &[&str], (size, count): (usize, usize)) -> Result<Self> {
        let memory = if size * count > 64 << 20 { "512" } else { "256" };
        // Its lines must not wait in a buffer until there are 4 KiB of them.
        let mut child = Command::new("stdbuf")
            .args(["-oL", "dpdk-testpmd"])
            .args(["-l", "0,1", "--main-lcore", asks, "--file-prefix"])
            .arg(format!("plimsoll{}-{asks}", std::process::id()))
            .args(["--no-huge", "-m", memory, "--no-pci", "--no-telemetry", "--log-level=error"])
            .args(devices.iter().map(|device| format!("--vdev={device}")))
            .args(["--", "-i", "--no-mlockall"])
            .args([format!("--total-num-mbufs={count}"), format!("--mbuf-size={size}")])
            .args(if size > 2_176 { ["--txd=256", "--rxd=256"] } else { ["--txd=2048", "--rxd=2048"] })
            .args(mode)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("no dpdk-testpmd; scripts/setup.sh bench installs it")?;
        let out = BufReader::new(child.stdout.take().context("its output")?);
        Ok(Self { child, out })
    }

    /// Sends it a command that it does not answer.
    pub fn tell(&mut self, command: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().context("its input")?;
        writeln!(input, "{command}").context("dpdk-testpmd ended")
    }

    /// Packets that a port of it has received.
    pub fn received(&mut self, port: u16) -> Result<u64> {
        Ok(self.received_with_bytes(port)?.0)
    }

    /// Packets that a port of it has received, and their bytes.
    pub fn received_with_bytes(&mut self, port: u16) -> Result<(u64, u64)> {
        self.tell(&format!("show port stats {port}"))?;
        for line in self.out.by_ref().lines() {
            let line = line?;
            let mut words = line.split_whitespace();
            let mut after = |word: &str| words.by_ref().skip_while(|it| *it != word).nth(1)?.parse().ok();
            // What `stop` prints has packets, and no bytes.
            if let Some(counts) = after("RX-packets:").zip(after("RX-bytes:")) {
                return Ok(counts);
            }
        }
        let mut rest = String::new();
        self.out.read_to_string(&mut rest)?;
        bail!("dpdk-testpmd ended: {rest}")
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        if let Some(input) = &mut self.child.stdin {
            let _ = writeln!(input, "quit");
        }
        drop(self.child.stdin.take());
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
