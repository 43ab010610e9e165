//! `plimsoll attach --domain` with libvirt and QEMU: a machine gets an interface while it runs (`make libvirt`).
//!
//! Needs root. libvirt has folders of the test's own, in the mount namespace that `scripts/apart` has made.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::attach::said;
use crate::support::{Daemon, Stage, eventually, ip, skip};

const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 9);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// A guest without KVM boots in ten seconds, on a busy machine in a minute.
const BOOT: Duration = Duration::from_secs(180);
/// What the guest sends at 20 Mb/s: 1.6 s, less what the burst and the queues hold.
const BYTES: usize = 4_000_000;
const AT_LEAST: Duration = Duration::from_millis(1_300);

/// libvirt, with folders of its own.
struct Libvirt {
    daemon: Child,
    stage: Stage,
}

impl Libvirt {
    fn start(tag: &str) -> Option<Self> {
        for program in ["libvirtd", "virsh", "qemu-system-x86_64"] {
            let there = Command::new(program).arg("--version").stdout(Stdio::null()).status();
            if !there.is_ok_and(|status| status.success()) {
                skip(&format!("{program} is missing; scripts/setup.sh libvirt installs it"));
                return None;
            }
        }
        let stage = Stage::with_netns(tag, &["far"])?;
        for (folder, place) in
            [("etc", "/etc"), ("lib", "/var/lib"), ("logs", "/var/log"), ("cache", "/var/cache")]
        {
            let own = stage.file(folder);
            fs::create_dir_all(&own).expect("made");
            let mount = format!("mkdir -p {place}/libvirt && mount --bind {} {place}/libvirt", own.display());
            assert!(Command::new("sh").args(["-c", &mount]).status().expect("it runs").success());
        }
        // Machines run as root, as the test's folder is root's, and in the test's own control group.
        let machines = "user = \"root\"\ngroup = \"root\"\nsecurity_driver = \"none\"\ncgroup_controllers = []\n\
                        namespaces = []\nstdio_handler = \"file\"\nremember_owner = 0\n";
        fs::write(stage.file("etc/qemu.conf"), machines).expect("written");
        fs::write(stage.file("libvirtd.conf"), "auth_unix_rw = \"none\"\nauth_unix_ro = \"none\"\n")
            .expect("written");
        let log = fs::File::create(stage.file("libvirt.log")).expect("a log");
        let daemon = Command::new("libvirtd")
            .arg("-f")
            .arg(stage.file("libvirtd.conf"))
            .arg("-p")
            .arg(stage.file("libvirtd.pid"))
            .stderr(log)
            .spawn()
            .expect("started");
        let libvirt = Self { daemon, stage };
        libvirt.eventually("libvirt answers", || libvirt.virsh(&["version"]).status.success());
        Some(libvirt)
    }

    fn eventually(&self, what: &str, holds: impl FnMut() -> bool) {
        let said = || format!("{}{}", self.stage.read("log"), self.stage.read("libvirt.log"));
        eventually(what, BOOT, said, holds);
    }

    fn virsh(&self, words: &[&str]) -> Output {
        Command::new("virsh").args(["--connect", "qemu:///system"]).args(words).output().expect("it runs")
    }

    fn xml(&self, options: &[&str]) -> String {
        said(&self.virsh(&[&["dumpxml", "shop"], options].concat()))
    }

    /// Defines a machine without a network card, whose serial port is the socket `serial`.
    fn define(&self, name: &str, memory: &str, images: &Path) {
        let (images, serial) = (images.display(), self.stage.file("serial"));
        // QEMU 7.2 without KVM ends with a segmentation fault where such a guest uses MSI-X (docs/vhost-user.md).
        let xml = format!(
            "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><name>{name}</name>
             <memory unit='MiB'>256</memory><vcpu>1</vcpu>{memory}
             <os><type arch='x86_64' machine='pc'>hvm</type><kernel>{images}/vmlinuz</kernel><initrd>{images}/initrd</initrd>
             <cmdline>console=ttyS0 quiet</cmdline></os><features><acpi/></features>
             <devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
             <serial type='unix'><source mode='bind' path='{}'/></serial><memballoon model='none'/></devices>
             <qemu:commandline><qemu:arg value='-global'/><qemu:arg value='virtio-net-pci.vectors=0'/></qemu:commandline>
             </domain>",
            serial.display()
        );
        let file = self.stage.file("domain.xml");
        fs::write(&file, xml).expect("written");
        let defined = self.virsh(&["define", &file.display().to_string()]);
        assert!(defined.status.success(), "{}", said(&defined));
    }

    /// Runs `plimsoll attach` for a machine.
    fn attach(&self, name: &str, options: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.args([
            "attach",
            "--domain",
            name,
            "--tenant",
            "vm",
            "--connect",
            "qemu:///system",
            "--policy",
        ]);
        command.arg(self.stage.file("policy.yaml")).arg("--socket").arg(self.stage.file("api.sock"));
        command.args(options).output().expect("it runs")
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        let _ = self.virsh(&["destroy", "shop"]);
        let _ = kill(Pid::from_raw(i32::try_from(self.daemon.id()).expect("a process id")), Signal::SIGTERM);
        let _ = self.daemon.wait();
    }
}

/// The guest's shell, on its serial port.
struct Shell {
    socket: UnixStream,
    heard: Arc<Mutex<String>>,
}

impl Shell {
    fn connect(at: &Path) -> Self {
        let socket = UnixStream::connect(at).expect("a serial port");
        let (mut reader, heard) =
            (socket.try_clone().expect("a descriptor"), Arc::new(Mutex::new(String::new())));
        std::thread::spawn({
            let heard = Arc::clone(&heard);
            move || {
                let mut part = [0; 4_096];
                while let Ok(len @ 1..) = reader.read(&mut part) {
                    heard.lock().expect("no panic beside").push_str(&String::from_utf8_lossy(&part[..len]));
                }
            }
        });
        Self { socket, heard }
    }

    fn has_said(&self, words: &str) -> bool {
        self.heard.lock().expect("no panic beside").contains(words)
    }

    fn type_in(&mut self, line: &str) {
        writeln!(self.socket, "{line}").expect("it reads");
    }
}

#[test]
#[ignore = "boots a machine without KVM, which takes a minute: make libvirt"]
fn a_machine_gets_an_interface_while_it_runs_and_loses_it() {
    let Some(libvirt) = Libvirt::start("lvt") else { return };
    let stage = &libvirt.stage;
    let images = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/guest.sh");
    let made = Command::new(script).arg(&images).output().expect("a shell");
    assert!(made.status.success(), "{}", said(&made));
    let policy = format!(
        "uplink: {{port: {{tap: {{netns: {}, name: up0}}}}, rate: 1Gbps}}\napi: {{socket: {}}}\n\
         tenants:\n  vm: {{port: {{af_packet: later}}, max: 20Mbps}} # mine\n",
        stage.netns("far"),
        stage.file("api.sock").display()
    );
    fs::write(stage.file("policy.yaml"), &policy).expect("written");
    let _daemon = Daemon::start(None, &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    ip(&["-n", &stage.netns("far"), "address", "add", &format!("{FAR}/24"), "dev", "up0"]);

    let shared = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>";
    libvirt.define("bare", "", &images);
    libvirt.define("shop", shared, &images);
    let started = libvirt.virsh(&["start", "shop"]);
    assert!(started.status.success(), "{}", said(&started));
    let mut shell = Shell::connect(&stage.file("serial"));

    // What cannot be changes nothing.
    let refused = libvirt.attach("bare", &["--write"]);
    assert!(refused.status.code() == Some(2) && said(&refused).contains("virsh edit"), "{}", said(&refused));
    let missing = libvirt.attach("there-is-none", &[]);
    assert!(!missing.status.success() && said(&missing).contains("there-is-none"), "{}", said(&missing));
    let path = stage.file("vm.sock").display().to_string();
    let options = ["--path", &path, "--write", "--persistent"];
    let dry = libvirt.attach("shop", &[&options[..], &["--dry-run"]].concat());
    assert!(
        dry.status.success() && said(&dry).contains("attach-device shop device.xml --live"),
        "{}",
        said(&dry)
    );
    assert_eq!((stage.read("policy.yaml") == policy, libvirt.xml(&[]).contains(&path)), (true, false));

    libvirt.eventually("the guest boots", || shell.has_said("guest is up"));
    let done = libvirt.attach("shop", &options);
    assert!(done.status.success(), "{}\n{}", said(&done), stage.read("libvirt.log"));
    assert!(said(&done).contains("--detach"), "how to undo it: {}", said(&done));
    assert!(
        stage.read("policy.yaml").contains(&format!("vhost_user: {{socket: {path}")),
        "{}",
        stage.read("policy.yaml")
    );
    assert!(stage.read("policy.yaml").contains("max: 20Mbps} # mine"), "all else stays");
    shell
        .type_in(&format!("until ip link set eth0 up; do sleep 1; done; ip address add {GUEST}/24 dev eth0"));
    libvirt.eventually("the guest answers", || stage.ping("far", GUEST, 56));

    // Its rate holds.
    let listener = stage.inside("far", || TcpListener::bind(SocketAddrV4::new(FAR, 7_001)).expect("bound"));
    let listener = listener.join().expect("listening");
    shell.type_in(&format!("dd if=/dev/zero bs=100000 count={} | nc {FAR} 7001", BYTES / 100_000));
    let (mut stream, _) = listener.accept().expect("a connection");
    let begun = Instant::now();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("all of it");
    let took = begun.elapsed();
    drop(stream); // for which the guest's `nc` waits
    eprintln!("{} bytes of the guest took {took:?} at 20 Mb/s", all.len());
    assert!(all.len() == BYTES && took > AT_LEAST, "{} bytes in {took:?}", all.len());

    // Again, and away.
    let again = libvirt.attach("shop", &["--write", "--persistent"]);
    assert!(again.status.success() && said(&again).contains("has the interface already"), "{}", said(&again));
    for options in [&[][..], &["--inactive"]] {
        assert_eq!(libvirt.xml(options).matches(&path).count(), 1, "{}", libvirt.xml(options));
    }
    let restarted = [libvirt.virsh(&["destroy", "shop"]), libvirt.virsh(&["start", "shop"])];
    assert!(
        restarted.iter().all(|done| done.status.success()),
        "{}",
        restarted.iter().map(said).collect::<String>()
    );
    let mut shell = Shell::connect(&stage.file("serial"));
    libvirt.eventually("the guest boots again", || shell.has_said("guest is up"));
    shell.type_in(&format!("ip link set eth0 up; ip address add {GUEST}/24 dev eth0"));
    libvirt.eventually("it has its card from the start", || stage.ping("far", GUEST, 56));
    let away = libvirt.attach("shop", &["--detach"]);
    assert!(away.status.success(), "{}", said(&away));
    shell.type_in("while [ -e /sys/class/net/eth0 ]; do sleep 1; done; echo the card has 'gone'");
    libvirt.eventually("the guest has no card", || shell.has_said("the card has gone"));
    libvirt.eventually("nor has the machine", || !libvirt.xml(&[]).contains(&path));
    assert!(!libvirt.xml(&["--inactive"]).contains(&path));
    let away = libvirt.attach("shop", &["--detach"]);
    assert!(away.status.success() && said(&away).contains("has no interface"), "{}", said(&away));
}
