//! Files that are made to take all memory and all time: each is answered in words, within bounds that follow from the size
//! of the largest file, and a daemon that reads one goes on.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plimsoll_daemon::Client;
use plimsoll_daemon::reader::{self, Ended, FileReader, Limits};

/// The size of most files here, and the largest size.
const MEGABYTES_16: usize = 16_000_000;
/// KiB of memory that reading any of them may take.
const MEMORY: usize = 512 << 10;
/// Seconds of a core: an optimised build needs two for the worst, what tests run needs some eight times as much.
const SECONDS: usize = 40;
/// Most bytes of output about any of them.
const WORDS: usize = 200_000;

/// Runs the command with these bounds on memory and time.
fn bounded(args: &[&str]) -> Output {
    let script = format!("ulimit -v {MEMORY}; ulimit -t {SECONDS}; exec \"$@\"");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_plimsoll")]).args(args);
    command.output().expect("it runs")
}

/// Checks a file, and that it was answered in words: by no signal, without giving up, and in a short text.
fn answered(name: &str, file: &str) -> String {
    let done = bounded(&["check", file]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(matches!(done.status.code(), Some(0 | 2)), "{name}: {}\n{said:.2000}", done.status);
    assert!(!said.contains("given up"), "{name}: {said:.2000}");
    assert!(said.len() <= WORDS, "{name}: {} bytes are said", said.len());
    said
}

fn lines(line: impl Fn(usize) -> String, count: usize) -> String {
    (0..count).map(line).collect()
}

/// Sixteen megabytes of one thing after the other.
fn sixteen(part: &str) -> Vec<u8> {
    let mut bytes = part.repeat(MEGABYTES_16.div_ceil(part.len())).into_bytes();
    bytes.truncate(MEGABYTES_16);
    bytes
}

/// Classes one below the other.
fn nested(classes: usize) -> String {
    let chain = lines(|n| format!("  c{n}: {{fifo: [c{}]}}\n", n + 1), classes);
    format!("policy:\n  root: {{fifo: [c0]}}\n{chain}  c{classes}: {{}}\n")
}

/// Each list holds the one before it ten times.
fn laughs() -> String {
    let list = |n: usize| format!("l{}: &l{} [{}]\n", n + 1, n + 1, vec![format!("*l{n}"); 10].join(", "));
    format!("l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n{}", lines(list, 12))
}

/// Texts that are no policy, of any kind.
fn anything() -> Vec<(&'static str, Vec<u8>)> {
    let big = "x".repeat(MEGABYTES_16 / 2);
    vec![
        ("open lists", sixteen("[")),
        ("open maps", sixteen("{a: ")),
        ("lists in lists, line by line", sixteen("- ")),
        ("maps in maps, line by line", lines(|n| format!("{}a:\n", " ".repeat(n)), 5_600).into_bytes()),
        ("questions", sixteen("? ")),
        ("laughs", laughs().into_bytes()),
        (
            "a long text and its aliases",
            format!("a: &a {big}\nb: [{}]\n", "*a, ".repeat(50_000)).into_bytes(),
        ),
        ("anchors", lines(|n| format!("- &a{n} x\n"), 1_000_000).into_bytes()),
        ("merges", format!("a: &a {{b: c}}\nd: {{{}}}\n", "<<: *a, ".repeat(1_000_000)).into_bytes()),
        ("one word", sixteen("x")),
        (
            "one quoted text",
            [b"policy: \"".to_vec(), sixteen("x"), b"\"".to_vec()].concat()[..MEGABYTES_16].to_vec(),
        ),
        ("a key of megabytes", format!("? {big}\n: 1\n").into_bytes()),
        ("numbers as keys", lines(|n| format!("{n}:\n"), 1_900_000).into_bytes()),
        ("short keys on one line", format!("{{{}", lines(|n| format!("k{n}, "), 1_700_000)).into_bytes()),
        ("short keys that are read", lines(|n| format!("k{n}: x\n"), 330_000).into_bytes()),
        ("one key again and again", sixteen("policy: 1\n")),
        ("one key, as often as is read", "policy: 1\n".repeat(330_000).into_bytes()),
        (
            "wrong classes",
            format!("policy:\n{}", lines(|n| format!("  k{n}: {{x: y}}\n"), 160_000)).into_bytes(),
        ),
        (
            "one long line",
            format!("policy: {{root: {{fifo: [{}]}}}}\n", lines(|n| format!("c{n},"), 900_000)).into_bytes(),
        ),
        ("bytes that are no UTF-8", vec![0xff; MEGABYTES_16]),
        ("zeros", vec![0; MEGABYTES_16]),
        ("comments", sixteen("# x\n")),
        ("one comment", sixteen("#")),
        ("empty lines", sixteen("\n")),
        ("spaces", sixteen(" ")),
        ("documents", sixteen("---\n")),
        (
            "a text of many lines",
            [b"policy: |\n".to_vec(), sixteen(" x\n")].concat()[..MEGABYTES_16].to_vec(),
        ),
        ("a byte too many", vec![b'#'; MEGABYTES_16 + 1]),
    ]
}

#[test]
fn sixteen_megabytes_of_anything_are_answered_as_the_operators_file() {
    let folder = Folder::new("operator");
    // A part of them: the same code reads all of them as a tenant's file, below, and the operator is no attacker.
    for (name, text) in anything().into_iter().step_by(3) {
        answered(name, &folder.write("p.yaml", text));
    }
}

#[test]
fn sixteen_megabytes_of_anything_are_answered_as_a_tenants_file() {
    let folder = Folder::new("tenant");
    let policy = folder.write("p.yaml", POLICY);
    for (name, text) in anything() {
        folder.write("t.yaml", text);
        answered(name, &policy);
    }
}

#[test]
fn two_megabytes_of_anything_are_answered_as_a_scenario() {
    let folder = Folder::new("scenario");
    let comments = "# x\n".repeat(600_000);
    let file = folder.write("s.yaml", format!("duration: 1s\nworkloads: {{}}\n{comments}"));
    assert!(answered("too long", &file).contains("it holds more than 2MB"));
    for key in ["tenants", "workloads", "hosts", "destinations", "expect", "timeline", "links", "sweep"] {
        let entries = lines(|n| format!("  k{n}: {{x: y}}\n"), 100_000);
        let file = folder.write("s.yaml", format!("duration: 1s\n{key}:\n{entries}"));
        answered(key, &file);
    }
}

const POLICY: &str = "
uplink: {port: memory, rate: 10Gbps}
tenants: {t: {port: memory, policy: t.yaml}, honest: {port: memory}}
";

#[test]
fn a_tenants_file_that_is_a_policy_of_too_much_is_answered() {
    let list = |count: usize| (0..count).map(|n| format!("c{n}")).collect::<Vec<_>>().join(", ");
    let each =
        |count: usize, of: &dyn Fn(usize) -> String| lines(|n| format!("  c{n}: {{{}}}\n", of(n)), count);
    let limits = |count: usize, of: &dyn Fn(usize) -> String| {
        format!("limits:\n{}", lines(|n| format!("  l{n}: {{rate: 1Gbps{}}}\n", of(n)), count))
    };
    let policy = |kind: &str, count: usize, of: &dyn Fn(usize) -> String| {
        format!("policy:\n  root: {{{kind}: [{}]}}\n{}", list(count), each(count, of))
    };
    let to = |n: usize| format!("match: {{dst: 10.{}.{}.{}}}", n >> 16, n >> 8 & 255, n & 255);
    let nothing = |_: usize| String::new();
    let cases = [
        ("30,000 nested classes", nested(30_000)),
        ("60,000 nested classes", nested(60_000)),
        ("a class behind a chain of limits", {
            limits(30_001, &|n| if n < 30_000 { format!(", via: l{}", n + 1) } else { String::new() })
                + &policy("fifo", 30_000, &|_| "via: l0, match: {vlan: 5}".to_owned())
        }),
        ("limits that meet again and again", {
            limits(2_000, &|n| {
                if n < 1_998 {
                    format!(", via: [l{}, l{}]", n / 2 * 2 + 2, n / 2 * 2 + 3)
                } else {
                    String::new()
                }
            }) + "policy: {root: {via: [l0, l1]}}\n"
        }),
        (
            "a limit for each class",
            limits(30_000, &nothing) + &policy("fifo", 60_000, &|n| format!("{}, via: l{}", to(n), n / 2)),
        ),
        ("60,000 classes side by side", policy("fifo", 60_000, &to)),
        (
            "60,000 classes that hold each other off",
            policy("priority", 60_000, &|n| format!("max: 1Gbps, {}", to(n))),
        ),
        (
            "60,000 misspelt classes",
            policy("fifo", 60_000, &nothing).replace("  c", "  some_rather_long_name_of_a_class_c"),
        ),
        (
            "matches that overlap",
            policy("wfq", 60_000, &|n| format!("match: {{src_port: {n}-65535, dst_port: 0-{n}}}")),
        ),
        ("two matches of 250,000 addresses", {
            let addresses =
                |len: u32| lines(|n| format!("10.{}.{}.{}/{len},", n >> 16, n >> 8 & 255, n & 255), 250_000);
            format!(
                "policy:\n  root: {{fifo: [a, b]}}\n  a: {{match: {{src: [{}]}}}}\n  b: {{match: {{src: [{}]}}}}\n",
                addresses(31),
                addresses(32)
            )
        }),
        ("60,000 queues", {
            let queues = lines(|n| format!("q{n}: {{match: {{vlan: {}}}}},", n % 4_000), 60_000);
            format!("policy: {{root: {{fifo: [a]}}, a: {{queues: {{{queues}}}}}}}\n")
        }),
        (
            "one file in 30,000 places",
            policy("fifo", 30_000, &|_| "match: {vlan: 1}, policy: other.yaml".to_owned()),
        ),
    ];
    let folder = Folder::new("policies");
    let file = folder.write("p.yaml", POLICY);
    let other = limits(50, &nothing) + "policy: {root: {fifo: [a]}, a: {match: {vlan: 2}, via: [unknown]}}\n";
    folder.write("other.yaml", other);
    for (name, text) in cases {
        let alone = folder.write("t.yaml", text);
        answered(name, &file);
        if name.contains("nested") {
            answered(&format!("{name}, alone"), &alone);
        }
    }
}

#[test]
fn many_files_of_one_tenant_are_counted_together() {
    let folder = Folder::new("files");
    let file = folder.write("p.yaml", POLICY);
    folder.write("t.yaml", "policy: {root: {fifo: [a]}, a: {policy: f0.yaml}}\n");
    for n in 0..300 {
        let text = format!("policy: {{root: {{fifo: [a]}}, a: {{policy: f{}.yaml}}}}\n", n + 1);
        folder.write(&format!("f{n}.yaml"), text);
    }
    let said = answered("a chain of files", &file);
    assert!(said.contains("there are more than 256 files with this one"), "{said}");
    let parts = (0..3).map(|n| format!("f{n}")).collect::<Vec<_>>();
    let classes = parts.iter().map(|part| format!(", {part}: {{match: {{vlan: 1}}, policy: {part}.yaml}}"));
    folder.write(
        "t.yaml",
        format!("policy: {{root: {{fifo: [{}]}}{}}}\n", parts.join(", "), classes.collect::<String>()),
    );
    for part in parts {
        folder.write(&format!("{part}.yaml"), "# x\n".repeat(1_500_000));
    }
    let said = answered("large files", &file);
    assert!(said.contains("hold more than 16MB together"), "{said}");
}

/// Each tenant's files may have the bytes of the largest file, and all together twice that: the reader keeps them all.
#[test]
fn files_of_many_tenants_are_counted_together() {
    let folder = Folder::new("tenants");
    let tenants = lines(|n| format!("  t{n}: {{port: memory, policy: t{n}.yaml}}\n"), 20);
    let file = folder.write("p.yaml", format!("uplink: {{port: memory, rate: 10Gbps}}\ntenants:\n{tenants}"));
    for n in 0..20 {
        folder.write(&format!("t{n}.yaml"), GOOD);
    }
    assert_eq!(answered("small files", &file), "");
    for n in [3, 5, 7] {
        folder.write(&format!("t{n}.yaml"), format!("{GOOD}#{}", "x".repeat(12_000_000 + n)));
    }
    let said = answered("large files", &file);
    assert!(
        said.contains("all tenants' files down to this one hold more than 32MB together"),
        "{said:.2000}"
    );
    assert!(said.contains("of it `t7`'s"), "{said:.2000}");
    folder.write("t7.yaml", GOOD);
    assert_eq!(answered("two large files", &file), "");
}

/// A refused file that is named many times is not read each time.
#[test]
fn large_files_that_are_named_often_are_read_a_few_times() {
    let folder = Folder::new("often");
    let file = folder.write("p.yaml", POLICY);
    let names = (0..30_000).map(|n| format!("c{n}")).collect::<Vec<_>>().join(", ");
    let classes = lines(|n| format!("  c{n}: {{match: {{vlan: 1}}, policy: large.yaml}}\n"), 30_000);
    folder.write("t.yaml", format!("policy:\n  root: {{fifo: [{names}]}}\n{classes}"));
    for (name, text) in [
        ("as large as any", vec![b'#'; MEGABYTES_16]),
        ("larger", vec![b'#'; MEGABYTES_16 + 1]),
        ("no text", [vec![b'#'; MEGABYTES_16 - 1], vec![0xff]].concat()),
    ] {
        folder.write("large.yaml", text);
        let said = answered(name, &file);
        assert!(said.contains("large.yaml"), "{name}: {said:.2000}");
    }
}

/// A daemon with ports in memory, ended with the value.
struct Daemon {
    process: Child,
    folder: Folder,
}

impl Daemon {
    /// None for an ordinary user, who may not run one.
    fn start(name: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            let required = std::env::var_os("PLIMSOLL_REQUIRE_LIVE").is_some_and(|value| value == "1");
            assert!(!required, "skipped: a daemon takes root");
            eprintln!("skipped: a daemon takes root");
            return None;
        }
        let folder = Folder::new(name);
        let place = folder.0.display();
        let port = |name: &str| format!("{{pcap: {{write: {place}/{name}.pcap}}}}");
        let policy = format!(
            "api: {{socket: {place}/api.sock}}\nuplink: {{port: {}, rate: 1Gbps}}\ntenants:\n  t: {{port: {}, policy: \
             t.yaml}}\n  honest: {{port: {}}}\n",
            port("up"),
            port("t"),
            port("honest")
        );
        let file = folder.write("p.yaml", policy);
        folder.write("t.yaml", GOOD);
        let log = fs::File::create(folder.0.join("log")).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        let process = command.args(["run", &file]).stderr(log).spawn().expect("it starts");
        let mut daemon = Self { process, folder };
        let until = Instant::now() + Duration::from_secs(60);
        while daemon.client().text("GET", "/v1/health").is_err() {
            let ended = daemon.process.try_wait().expect("a child");
            let said = || fs::read_to_string(daemon.folder.0.join("log")).unwrap_or_default();
            assert!(ended.is_none(), "it ended: {}", said());
            assert!(Instant::now() < until, "it does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(daemon)
    }

    fn client(&self) -> Client {
        Client::new(&self.folder.0.join("api.sock"))
    }

    /// Writes the tenant's file, and makes the daemon read it.
    fn reload(&self, text: &str) -> Output {
        self.folder.write("t.yaml", text);
        let socket = self.folder.0.join("api.sock").display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.args(["reload", "--socket", &socket]).output().expect("it runs")
    }

    /// The most memory that it has had, in KiB.
    fn peak(&self) -> usize {
        let status = fs::File::open(format!("/proc/{}/status", self.process.id())).expect("it runs");
        let mut lines = BufReader::new(status).lines().map_while(Result::ok);
        let line = lines.find(|line| line.starts_with("VmHWM")).expect("a figure");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("KiB")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.process.id()).expect("a pid"));
        let _ = kill(pid, Signal::SIGKILL);
        let _ = self.process.wait();
    }
}

const GOOD: &str = "policy: {root: {wfq: [web, rest]}, web: {match: {dst_port: 80}}, rest: {}}\n";

#[test]
fn a_reload_refuses_nested_classes_in_words_and_the_daemon_goes_on() {
    let Some(daemon) = Daemon::start("nested") else { return };
    let before = daemon.peak();
    for classes in [30_000, 60_000] {
        let refused = daemon.reload(&nested(classes));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{said:.2000}");
        let levels = classes + 3;
        assert!(
            said.contains(&format!("lies too deep: the tree has {levels} levels, 10 are allowed")),
            "{said:.2000}"
        );
        assert!(said.contains("class `t/c0/c1/…/c6/c7/c8`"), "the ends of its path are shown: {said:.2000}");
        let classes = daemon.client().text("GET", "/v1/stats").expect("it answers");
        assert!(classes.contains("t/web"), "its policy is as it was: {classes}");
    }
    let grown = daemon.peak() - before;
    assert!(grown < MEMORY, "two files of 2 MB took {grown} KiB");
    let through = daemon.reload(GOOD);
    assert_eq!(through.status.code(), Some(0), "{}", String::from_utf8_lossy(&through.stderr));
}

/// The answer of `plimsoll read-file` about this text, with these bounds on memory and CPU seconds.
fn read(text: &str, memory: u64, cpu: u64) -> Result<Vec<u8>, Ended> {
    let folder = Folder::new(&format!("read-{memory}-{cpu}-{}", text.len()));
    let file = fs::File::open(folder.write("t.yaml", text)).expect("written");
    let limits = Limits { memory, cpu, ..Limits::default() };
    let program = env!("CARGO_BIN_EXE_plimsoll").into();
    reader::Child { program, command: "read-file".into(), limits }.read_file(file.into())
}

#[test]
fn a_file_that_takes_more_memory_or_time_than_there_is_ends_the_process_that_reads_it() {
    let text = lines(|n| format!("k{n}: x\n"), 330_000);
    assert!(read(&text, 512 << 20, 60).is_ok(), "with what there is, it is read");
    assert_eq!(read(&text, 80 << 20, 60), Err(Ended::Memory(83)));
    assert_eq!(read("a: \0", 512 << 20, 60).map(|answer| answer.starts_with(b"{\"Syntax\"")), Ok(true));
    assert_eq!(read(&text, 512 << 20, 0).map(|answer| answer.len()), Err(Ended::Cpu(0)));
}

#[test]
fn the_process_that_reads_can_open_nothing_and_is_nobody() {
    // It waits for its standard input, a pipe that stays open, having given everything up.
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["read-file", "536870912", "10"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().expect("it starts");
    let place = format!("/proc/{}", process.id());
    let limits = || fs::read_to_string(format!("{place}/limits")).unwrap_or_default();
    let until = Instant::now() + Duration::from_secs(60);
    let row = |limits: &str, name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
        line[name.len().min(line.len())..].split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    while row(&limits(), "Max cpu time") != ["10", "11"] {
        assert!(Instant::now() < until, "{}", limits());
        std::thread::sleep(Duration::from_millis(5));
    }
    let found = limits();
    assert_eq!(row(&found, "Max open files"), ["3", "3"]);
    assert_eq!(row(&found, "Max file size"), ["0", "0"]);
    assert_eq!(row(&found, "Max core file size"), ["0", "0"]);
    assert_eq!(row(&found, "Max address space"), ["536870912", "536870912"]);
    let status = fs::read_to_string(format!("{place}/status")).expect("it runs");
    let of = |key: &str| {
        let line = status.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(of(set), ["0000000000000000"], "{set}");
    }
    assert_eq!(of("NoNewPrivs:"), ["1"]);
    if nix::unistd::geteuid().is_root() {
        assert_eq!(of("Uid:"), vec!["65534"; 4]);
    }
    drop(process.stdin.take());
    assert!(process.wait().expect("a child").success(), "an empty file is one without a policy");
}
