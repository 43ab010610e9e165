//! Tenants' programs on a live host: real memcached behind the cache of `examples/programs/`, and programs that would harm others.
//!
//! Needs root (network namespaces). Everything made here is removed, whatever happens.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use plimsoll_daemon::{Health, Stats};
use serde_json::Value;

use crate::alone;
use crate::support::programs::{ROOT, compiled};
use crate::support::{Daemon, Stage, skip};

const STORE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const USER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// A policy with TAPs for these tenants, each with more of what a tenant states.
fn policy(stage: &Stage, tenants: &[(&str, Ipv4Addr, String)]) -> String {
    let tenant = |(name, address, more): &(&str, Ipv4Addr, String)| {
        let netns = stage.netns(name);
        format!(
            "  {name}: {{port: {{tap: {{netns: {netns}, name: eth0}}}}, interface: {{addresses: {address}/24}}{more}}}\n"
        )
    };
    let tenants: String = tenants.iter().map(tenant).collect();
    let socket = stage.file("api.sock");
    format!(
        "uplink: {{port: {{tap: {{netns: {}, name: up0}}}}, rate: 1Gbps}}\napi: {{socket: {}}}\ntenants:\n{tenants}",
        stage.netns("wire"),
        socket.display()
    )
}

fn start(stage: &Stage, policy: &str) -> Daemon {
    fs::write(stage.file("policy.yaml"), policy).expect("written");
    let daemon = Daemon::start(None, &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    daemon
}

/// Ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks a memcached server over UDP; none if it does not answer.
fn ask(socket: &UdpSocket, request: &str) -> Option<String> {
    // The number of the request, of the datagram, and of all its datagrams.
    let message = [&[0, 7, 0, 0, 0, 1, 0, 0], request.as_bytes()].concat();
    socket.send(&message).expect("sent");
    let mut answer = [0; 2_048];
    let len = socket.recv(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer[8..len]).into_owned())
}

/// The number that memcached's `stats` has under a name, asked beside it, where no program is.
fn counted(stage: &Stage, name: &'static str) -> u64 {
    let asked = stage.inside("store", move || {
        let mut stream = TcpStream::connect((STORE, 11_211)).expect("connected");
        stream.write_all(b"stats\r\nquit\r\n").expect("asked");
        let mut all = String::new();
        stream.read_to_string(&mut all).expect("answered");
        let line =
            all.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")).map(str::to_owned));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {all}"))
    });
    asked.join().expect("it answers")
}

#[test]
fn a_cache_answers_for_a_real_memcached_and_everything_else_passes_it() {
    let _alone = alone();
    let Some(stage) = Stage::with_netns("prc", &["wire", "store", "user"]) else { return };
    compiled(&stage.file(""), "cache", &[]);
    let program = ", program: {module: cache.wasm}".to_owned();
    let text = policy(&stage, &[("store", STORE, program), ("user", USER, String::new())]);
    let mut daemon = start(&stage, &text);
    stage.eventually("the store is reached", || stage.ping("user", STORE, 56));
    // TCP in both directions, whose segments are cut for the program.
    stage.transfer("user", "store", STORE, 8_000_000);
    stage.transfer("store", "user", USER, 8_000_000);

    let mut memcached = stage.command("store", "memcached");
    memcached.args(["-u", "root", "-l", &STORE.to_string(), "-U", "11211", "-t", "1", "-m", "16"]);
    let memcached = memcached.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let server = Server(memcached.expect("memcached is installed"));
    let user = stage.inside("user", || {
        let socket = UdpSocket::bind((USER, 0)).expect("bound");
        socket.connect((STORE, 11_211)).expect("connected");
        socket.set_read_timeout(Some(Duration::from_secs(1))).expect("set");
        socket
    });
    let user = user.join().expect("a socket");
    let value = "VALUE plimsoll 0 11\r\nload line 1\r\nEND\r\n";
    stage.eventually("it stores", || {
        ask(&user, "set plimsoll 0 0 11\r\nload line 1\r\n").as_deref() == Some("STORED\r\n")
    });
    // What was just changed is kept only after a while; the next answer then is.
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(ask(&user, "get plimsoll\r\n").as_deref(), Some(value));
    let before = counted(&stage, "cmd_get");
    for _ in 0..50 {
        assert_eq!(ask(&user, "get plimsoll\r\n").as_deref(), Some(value));
    }
    let asked = counted(&stage, "cmd_get") - before;
    assert!(asked <= 5, "memcached has answered {asked} of 50");
    let stats: Stats = stage.client().get("/v1/stats").expect("counters");
    let program = stats.tenants["store"].program.expect("it has one");
    assert!(program.redirected >= 45 && program.faults + program.overruns == 0, "{program:?}");
    assert!(stats.tenants["user"].program.is_none());
    let page = stage.client().text("GET", "/metrics").expect("it answers");
    assert!(page.contains("plimsoll_program_halted{tenant=\"store\"} 0\n"), "{page}");

    // With a changed module the next reload puts another program in place; a wrong one is refused, and nothing changes.
    fs::write(stage.file("cache.wasm"), b"\0asm\x01\0\0\0").expect("written");
    let refused = stage.client().post::<Value>("/v1/reload").expect_err("it is wrong").to_string();
    assert!(refused.contains("tenant store: program ") && refused.contains("exports no memory"), "{refused}");
    assert_eq!(ask(&user, "get plimsoll\r\n").as_deref(), Some(value));
    fs::rename(compiled(&stage.file(""), "reflector", &[]), stage.file("cache.wasm")).expect("renamed");
    let reloaded: Value = stage.client().post("/v1/reload").expect("reloaded");
    let changes = reloaded["changes"].as_str().expect("text");
    assert!(changes.contains("~ tenant store: the module") && changes.contains("has changed"), "{changes}");
    assert_eq!(ask(&user, "get plimsoll\r\n").as_deref(), Some("get plimsoll\r\n"), "it is sent back");
    drop(server);

    let (code, _) = daemon.end(Signal::SIGTERM).expect("it ends");
    assert_eq!(code, Some(0), "{}", stage.read("log"));
    // System calls that are refused are in the log.
    assert!(!stage.read("log").contains("is refused"), "{}", stage.read("log"));
}

/// A program that does this for each batch from the network.
fn module(stage: &Stage, name: &str, body: &str) {
    let source = stage.file(&format!("{name}.c"));
    let text = format!(
        "#include \"plimsoll.h\"\nPLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) {{\n    \
         struct plimsoll_batch *batch = plimsoll_batch(at);\n    {body}\n    return batch->count;\n}}\n"
    );
    fs::write(&source, text).expect("written");
    let built = Command::new("clang")
        .args(["--target=wasm32", "-O1", "-mbulk-memory", "-nostdlib", "-Wl,--no-entry", "-I"])
        .arg(Path::new(ROOT).join("sdk/c"))
        .arg("-o")
        .args([&stage.file(&format!("{name}.wasm")), &source])
        .output()
        .expect("clang");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

#[test]
fn programs_that_never_end_or_trap_harm_their_own_tenant_only() {
    let _alone = alone();
    let Some(stage) = Stage::with_netns("prh", &["wire", "loop", "trap", "one", "two"]) else { return };
    module(&stage, "loop", "for (volatile uint32_t for_ever = 1; for_ever;) {}");
    module(&stage, "trap", "__builtin_trap();");
    let address = |number| Ipv4Addr::new(10, 9, 0, number);
    let program = |name: &str| format!(", program: {{module: {name}.wasm}}");
    let text = policy(
        &stage,
        &[
            ("loop", address(1), program("loop")),
            ("trap", address(2), program("trap")),
            ("one", address(3), String::new()),
            ("two", address(4), String::new()),
        ],
    );
    let mut daemon = start(&stage, &text);
    stage.eventually("two is reached", || stage.ping("one", address(4), 56));
    assert!(!stage.ping("one", address(2), 56), "it traps");
    stage.eventually("it is halted", || {
        let _ = stage.ping("one", address(1), 56);
        let health: Health = stage.client().get("/v1/health").expect("it answers");
        health.halted_programs == ["loop"] && health.status == "degraded"
    });
    assert!(stage.ping("one", address(4), 56));
    let log = stage.read("log");
    assert!(log.contains("tenant loop: its program is HALTED, as 4 calls took too long"), "{log}");
    assert!(log.contains("tenant trap: its program has failed"), "{log}");
    let stats: Stats = stage.client().get("/v1/stats").expect("counters");
    let lost = |name: &str, why: &str| stats.tenants[name].drops.get(why).copied().unwrap_or(0);
    assert!(lost("loop", "program_over_time") >= 4 && lost("trap", "program_fault") >= 1, "{stats:?}");
    assert_eq!(stats.tenants["loop"].program.expect("one").overruns, 4);
    // They may send, as these programs do not look at that; and without its program a tenant is reached again.
    let text = text.replace(&program("loop"), "");
    fs::write(stage.file("policy.yaml"), text).expect("written");
    let _: Value = stage.client().post("/v1/reload").expect("reloaded");
    stage.eventually("it is reached", || stage.ping("one", address(1), 56));
    let health: Health = stage.client().get("/v1/health").expect("it answers");
    assert_eq!(health.status, "ok", "{health:?}");
    let (code, _) = daemon.end(Signal::SIGTERM).expect("it ends");
    assert_eq!(code, Some(0), "{}", stage.read("log"));
}

/// The last core that this process may use.
fn last_core() -> u32 {
    let status = fs::read_to_string("/proc/self/status").expect("it is there");
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a line");
    allowed.rsplit([',', '-']).next().and_then(|core| core.trim().parse().ok()).expect("a core")
}

#[test]
fn a_program_on_its_own_core_works_in_the_sandbox_and_harms_no_one_when_it_never_ends() {
    let _alone = alone();
    let Some(stage) = Stage::with_netns("prc", &["wire", "own", "one", "two"]) else { return };
    module(&stage, "own", "");
    let address = |number| Ipv4Addr::new(10, 9, 0, number);
    let core = last_core();
    let cores = |core: u32| format!(", program: {{module: own.wasm, cpu: {{cores: [{core}]}}}}");
    let tenants = |program: String| {
        policy(
            &stage,
            &[
                ("own", address(1), program),
                ("one", address(2), String::new()),
                ("two", address(3), String::new()),
            ],
        )
    };
    let mut daemon = start(&stage, &tenants(cores(core)));
    stage.eventually("it is reached", || stage.ping("one", address(1), 56));
    let program = || {
        let stats: Stats = stage.client().get("/v1/stats").expect("counters");
        stats.tenants["own"].program.expect("it has one")
    };
    assert_eq!(program().core, Some(core));
    stage.eventually("what its core has done is counted", || {
        let seen = program();
        seen.core_time > 0.0 && seen.packets > 0
    });
    let page = stage.client().text("GET", "/metrics").expect("it answers");
    assert!(page.contains("plimsoll_program_core_seconds_total{tenant=\"own\"} 0."), "{page}");

    // A core that is not there is refused, and nothing changes.
    fs::write(stage.file("policy.yaml"), tenants(cores(9_999))).expect("written");
    let refused = stage.client().post::<Value>("/v1/reload").expect_err("there is none").to_string();
    assert!(refused.contains("this process may not use core 9999"), "{refused}");
    assert!(stage.ping("one", address(1), 56));

    fs::write(stage.file("policy.yaml"), tenants(cores(core))).expect("written");
    module(&stage, "own", "for (volatile uint32_t for_ever = 1; for_ever;) {}");
    let _: Value = stage.client().post("/v1/reload").expect("reloaded");
    stage.eventually("it is halted", || {
        let _ = stage.ping("one", address(1), 56);
        program().halted
    });
    assert!(stage.ping("one", address(3), 56), "others are reached");

    // From its core to the engine's.
    module(&stage, "own", "");
    fs::write(stage.file("policy.yaml"), tenants(", program: {module: own.wasm}".to_owned()))
        .expect("written");
    let _: Value = stage.client().post("/v1/reload").expect("reloaded");
    stage.eventually("it is reached again", || stage.ping("one", address(1), 56));
    assert_eq!(program().core, None);
    let (code, _) = daemon.end(Signal::SIGTERM).expect("it ends");
    assert_eq!(code, Some(0), "{}", stage.read("log"));
    assert!(!stage.read("log").contains("is refused"), "{}", stage.read("log"));
}

#[test]
fn a_first_program_takes_a_restart_as_the_sandbox_is_what_it_was() {
    let _alone = alone();
    let Some(stage) = Stage::with_netns("prs", &["wire", "a"]) else { return };
    compiled(&stage.file(""), "reflector", &[]);
    let without = policy(&stage, &[("a", STORE, String::new())]);
    let _daemon = start(&stage, &without);
    let health: Health = stage.client().get("/v1/health").expect("it answers");
    let confinement = health.confinement.expect("it is confined");
    if !confinement.seccomp {
        return skip("no seccomp here");
    }
    assert!(!confinement.programs);
    let with = policy(&stage, &[("a", STORE, ", program: {module: reflector.wasm}".to_owned())]);
    fs::write(stage.file("policy.yaml"), with).expect("written");
    let refused = stage.client().post::<Value>("/v1/reload").expect_err("refused").to_string();
    assert!(
        refused.contains("tenant a gets a `program`") && refused.contains("Restart the daemon"),
        "{refused}"
    );
}
