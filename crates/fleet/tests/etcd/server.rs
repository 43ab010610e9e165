//! An etcd of the test's own: on loopback, with its own ports and folder.

#![allow(dead_code, reason = "each test file uses a part")]

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running etcd, which ends with this.
pub struct Etcd {
    child: Option<Child>,
    folder: tempfile::TempDir,
    ports: [u16; 2],
    options: Vec<String>,
    runtime: tokio::runtime::Runtime,
}

impl Etcd {
    /// Starts one; `None`, and says so, where there is none.
    pub fn start(name: &str, options: &[String]) -> Option<Self> {
        if Command::new("etcd").arg("--version").output().is_err() {
            eprintln!("skipped: there is no etcd (Debian's etcd-server)");
            return None;
        }
        let free = || TcpListener::bind("127.0.0.1:0").expect("a port");
        let (one, other) = (free(), free());
        let ports = [&one, &other].map(|bound| bound.local_addr().expect("bound").port());
        drop((one, other));
        let folder = tempfile::Builder::new().prefix(name).tempdir().expect("a folder");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut etcd = Self { child: None, folder, ports, options: options.to_vec(), runtime };
        etcd.launch();
        Some(etcd)
    }

    /// Starts it on the data that it has, and waits until it listens.
    pub fn launch(&mut self) {
        let scheme = if self.options.is_empty() { "http" } else { "https" };
        let client = format!("{scheme}://127.0.0.1:{}", self.ports[0]);
        let peer = format!("http://127.0.0.1:{}", self.ports[1]);
        let log = File::create(self.folder.path().join("log")).expect("a log");
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.folder.path().join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command
            .args(["--initial-cluster", &format!("default={peer}"), "--unsafe-no-fsync"])
            .args(&self.options);
        // Of the environment it would take settings.
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.child = Some(command.spawn().expect("started"));
        let end = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", self.ports[0])).is_err() {
            assert!(Instant::now() < end, "etcd does not listen:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        if self.options.is_empty() {
            while self.ask(async |client| client.get("x", None).await).is_err() {
                assert!(Instant::now() < end, "etcd does not answer:\n{}", self.log());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// The URL of a fleet.
    pub fn url(&self, fleet: &str) -> String {
        format!("http://127.0.0.1:{}/{fleet}", self.ports[0])
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("gone");
        }
    }

    /// Stops it, or lets it go on.
    pub fn pause(&self, pause: bool) {
        let id = self.child.as_ref().expect("it runs").id().to_string();
        let signal = if pause { "-STOP" } else { "-CONT" };
        assert!(Command::new("kill").args([signal, &id]).status().is_ok_and(|done| done.success()));
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn ask<T>(
        &self,
        ask: impl AsyncFnOnce(&mut etcd_client::Client) -> Result<T, etcd_client::Error>,
    ) -> Result<T, etcd_client::Error> {
        self.runtime.block_on(async {
            let mut client =
                etcd_client::Client::connect([format!("http://127.0.0.1:{}", self.ports[0])], None).await?;
            ask(&mut client).await
        })
    }

    /// Forgets all revisions but the present one.
    pub fn compact(&self) {
        let compacted = self.ask(async |client| {
            let now = client.get("x", None).await?.header().expect("a header").revision();
            client.compact(now, None).await
        });
        compacted.expect("compacted");
    }

    /// Has clients need a user with a password.
    pub fn enable_auth(&self, user: &str, password: &str) {
        let done = self.ask(async |client| {
            client.user_add(user, password, None).await?;
            client.role_add("root").await?;
            client.user_grant_role(user, "root").await?;
            client.auth_enable().await
        });
        done.expect("enabled");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An authority, and certificates for 127.0.0.1 and for a client; `None`, and says so, without openssl.
pub fn certificates(folder: &Path) -> Option<PathBuf> {
    let script = "set -e
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca
        for who in server client; do
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $who.key -out $who.csr -subj /CN=$who
            printf 'subjectAltName=IP:127.0.0.1\\nextendedKeyUsage=serverAuth,clientAuth\\n' >ext
            openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $who.pem -days 2 -extfile ext
        done";
    let done = Command::new("sh").args(["-c", script]).current_dir(folder).output().expect("a shell");
    if !done.status.success() {
        eprintln!("skipped: no certificates: {}", String::from_utf8_lossy(&done.stderr));
        return None;
    }
    Some(folder.to_owned())
}
