//! `plimsoll program`, with the programs of `examples/programs/` as their users compile them.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::support::programs::compiled;
use crate::support::skip;
use pcap_file::pcap::{PcapPacket, PcapWriter};
use pcap_file::pcapng::{Block, PcapNgReader};

fn plimsoll(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(args).output().expect("it runs")
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(args: &[&str]) -> Value {
    let done = plimsoll(args);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    serde_json::from_slice(&done.stdout).expect("JSON")
}

/// UDP over IPv4 from 10.0.0.1:4000 to 10.0.0.2:7.
fn udp(payload: &[u8]) -> Vec<u8> {
    packet((4_000, 7), payload)
}

/// UDP over IPv4 from 10.0.0.1 to 10.0.0.2, from one port to another.
fn packet((from, to): (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    let len = payload.len() as u16;
    frame.extend((len + 28).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let mut sum: u32 = frame[14..].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    while sum >> 16 > 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    frame.extend(from.to_be_bytes());
    frame.extend(to.to_be_bytes());
    frame.extend((len + 8).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// An ARP request.
fn arp() -> Vec<u8> {
    let mut frame = vec![0xff; 12];
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.resize(60, 0);
    frame
}

fn capture(folder: &Path, frames: &[Vec<u8>]) -> String {
    capture_every(folder, frames, Duration::from_millis(1))
}

fn capture_every(folder: &Path, frames: &[Vec<u8>], pause: Duration) -> String {
    let path = folder.join("in.pcap");
    let mut writer = PcapWriter::new(File::create(&path).expect("a file")).expect("a header");
    for (number, frame) in (0..).zip(frames) {
        let packet = PcapPacket::new(pause * number, frame.len() as u32, frame);
        writer.write_packet(&packet).expect("written");
    }
    path.display().to_string()
}

/// The frames of a capture that the command has written.
fn written(path: &str) -> Vec<Vec<u8>> {
    let mut reader = PcapNgReader::new(File::open(path).expect("written")).expect("a capture");
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.expect("a block") {
            frames.push(packet.data.to_vec());
        }
    }
    frames
}

/// Whether the checksum of IPv4's header is right.
fn is_whole(frame: &[u8]) -> bool {
    plimsoll_wire::ones_complement_sum(&frame[14..34]) == 0xffff
}

#[test]
fn the_reflector_sends_udp_back_and_the_filter_takes_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = udp(b"PLIMSOLL and more");
    // A frame that was padded to 60 bytes, with the rest of a token in its padding.
    let mut padded = udp(b"PLIMS");
    padded.extend(b"OLL");
    padded.resize(60, 0);
    let mut fragment = token.clone();
    fragment[20] = 0x20;
    let frames = [udp(b"hello"), arp(), token, padded, fragment];
    let input = capture(folder.path(), &frames);
    let out = folder.path().join("out.pcapng").display().to_string();

    let reflector = compiled(folder.path(), "reflector", &[]).display().to_string();
    let told = json(&["program", "run", &reflector, "--read", &input, "--write", &out, "--json"]);
    assert_eq!(
        (&told["read"], &told["redirected"]["packets"], &told["passed"]["packets"]),
        (&5.into(), &3.into(), &2.into())
    );
    let back = written(&out);
    assert_eq!(back.len(), 5);
    assert_eq!(back[0][..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    assert_eq!(
        (&back[0][26..34], &back[0][34..38]),
        (&[10, 0, 0, 2, 10, 0, 0, 1][..], &[0, 7, 0x0f, 0xa0][..])
    );
    assert!(is_whole(&back[0]) && back[0][42..] == *b"hello");
    assert_eq!(back[1], arp());

    let filter = compiled(folder.path(), "filter", &[]).display().to_string();
    let told =
        json(&["program", "run", &filter, "--read", &input, "--write", &out, "--batch", "2", "--json"]);
    assert_eq!((&told["dropped"]["packets"], &told["passed"]["packets"]), (&3.into(), &2.into()), "{told}");
    let passed = written(&out);
    assert_eq!(passed, [arp(), udp(b" and more")]);
}

/// The hardware address of the tenant in these captures.
const TENANT: &str = "02:00:00:00:00:02";

/// The same packet from the tenant.
fn from_tenant(mut frame: Vec<u8>) -> Vec<u8> {
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    let (mut source, mut destination) = ([0; 4], [0; 4]);
    source.copy_from_slice(&frame[26..30]);
    destination.copy_from_slice(&frame[30..34]);
    frame[26..30].copy_from_slice(&destination);
    frame[30..34].copy_from_slice(&source);
    frame
}

#[test]
fn the_switch_follows_the_entries_that_its_host_makes() {
    let folder = tempfile::tempdir().expect("a folder");
    // For the flow from 10.0.0.1:4000 to 10.0.0.2:7.
    let order = |action: u8, to: u16| {
        let mut payload = vec![action, 9, 10, 0, 0, 1, 10, 0, 0, 2, 0x0f, 0xa0];
        payload.extend(to.to_be_bytes());
        from_tenant(packet((1, 6_653), &payload))
    };
    let frames = [
        udp(b"a miss"),
        order(1, 7),
        udp(b"dropped"),
        packet((4_000, 8), b"another flow"),
        order(3, 7),
        udp(b"to a port"),
        order(0, 8), // there is none: nothing changes
        udp(b"still to the port"),
        order(0, 7),
        udp(b"a miss again"),
    ];
    let input = capture(folder.path(), &frames);
    let switch = compiled(folder.path(), "switch", &[]).display().to_string();
    let told = json(&["program", "run", &switch, "--read", &input, "--mac", TENANT, "--json"]);
    let counts = ["passed", "dropped", "redirected"].map(|what| told[what]["packets"].as_u64());
    assert_eq!(counts, [Some(3), Some(1 + 4), Some(2)], "{told}");
}

#[test]
fn the_cache_answers_what_has_passed_and_never_what_was_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let message = |text: &[u8]| [&[0, 7, 0, 0, 0, 1, 0, 0], text].concat();
    let ask = |text: &[u8]| packet((4_000, 11_211), &message(text));
    let answer = |text: &[u8]| {
        let mut frame = from_tenant(packet((11_211, 4_000), &message(text)));
        frame.resize(frame.len().max(60), 0);
        frame
    };
    let value = b"VALUE k 0 5\r\nhello\r\nEND\r\n";
    // Each packet is 50 ms after the one before, and a value is not kept for 100 ms after a change.
    let steps: &[(Vec<u8>, bool)] = &[
        (ask(b"get k\r\n"), false),
        (answer(value), false),
        (ask(b"get k\r\n"), true),
        (ask(b"get other\r\n"), false),
        (ask(b"gets k\r\n"), false), // not understood: all is forgotten
        (ask(b"get k\r\n"), false),
        (answer(value), false), // within 100 ms
        (ask(b"get k\r\n"), false),
        (answer(value), false),
        (ask(b"get k\r\n"), true),
        (ask(b"set k 0 0 2\r\nhi\r\n"), false),
        (ask(b"get k\r\n"), false),
        (answer(value), false), // the server may have read it before
        (ask(b"get k\r\n"), false),
        (answer(b"VALUE k 0 2\r\nhi\r\nEND\r\n"), false),
        (ask(b"get k\r\n"), true),
        (ask(b"delete k\n"), false), // without a carriage return, as memcached allows it
        (ask(b"get k\r\n"), false),
        (ask(b"get k\r\n"), false),
        (answer(b"VALUE k 0 2\r\nhi\r\nVALUE l 0 2\r\nho\r\nEND\r\n"), false), // two values
        (ask(b"get k\r\n"), false),
    ];
    let frames: Vec<_> = steps.iter().map(|(frame, _)| frame.clone()).collect();
    let input = capture_every(folder.path(), &frames, Duration::from_millis(50));
    let out = folder.path().join("out.pcapng").display().to_string();
    let cache = compiled(folder.path(), "cache", &[]).display().to_string();
    let told =
        json(&["program", "run", &cache, "--read", &input, "--mac", TENANT, "--write", &out, "--json"]);
    assert_eq!(told["redirected"]["packets"], 3, "{told}");
    let came = written(&out);
    assert_eq!(came.len(), steps.len());
    for (number, ((frame, answered), came)) in steps.iter().zip(&came).enumerate() {
        assert_eq!(frame != came, *answered, "packet {number}");
    }
    assert!(is_whole(&came[2]) && came[2][42..] == *message(value), "{:?}", came[2]);
    assert_eq!(came[15][42..], *message(b"VALUE k 0 2\r\nhi\r\nEND\r\n"));
}

#[test]
fn the_resizer_makes_packets_of_each_length_as_long_as_it_states() {
    let folder = tempfile::tempdir().expect("a folder");
    let frames: Vec<_> = [0, 10, 214, 300, 1_400].map(|len| udp(&vec![7; len])).to_vec();
    let input = capture(folder.path(), &frames);
    let out = folder.path().join("out.pcapng").display().to_string();
    let resizer = compiled(folder.path(), "resizer", &["-DSIZE=256"]).display().to_string();
    let told =
        json(&["program", "run", &resizer, "--read", &input, "--way", "egress", "--write", &out, "--json"]);
    assert_eq!(told["passed"], serde_json::json!({"packets": 5, "bytes": 5 * 256}), "{told}");
    for frame in written(&out) {
        assert!(is_whole(&frame) && frame.len() == 256);
        assert_eq!(
            (&frame[16..18], &frame[38..40]),
            (&242_u16.to_be_bytes()[..], &222_u16.to_be_bytes()[..])
        );
    }
    let through = json(&["program", "run", &resizer, "--read", &input, "--json"]);
    assert_eq!(
        through["passed"]["bytes"],
        42 * 5 + 10 + 214 + 300 + 1_400,
        "it looks at packets that leave only"
    );
}

#[test]
fn a_wrong_program_is_refused_and_one_at_fault_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, wat::parse_str(text).expect("it is right")).expect("written");
        path.display().to_string()
    };
    let module = |body: &str| {
        format!(
            "(module (memory (export \"memory\") 1) (func (export \"plimsoll_abi_1\")) (func $in (export \"ingress\") (param i32) (result i32) {body}))"
        )
    };
    let imports = file("imports.wasm", "(module (import \"env\" \"puts\" (func)))");
    let done = plimsoll(&["program", "check", &imports]);
    assert_eq!(done.status.code(), Some(2));
    assert!(err(&done).contains("imports.wasm: it imports `env.puts`"), "{}", err(&done));
    let none = plimsoll(&["program", "check", "/nonexistent.wasm"]);
    assert!(none.status.code() == Some(2) && err(&none).contains("/nonexistent.wasm"), "{}", err(&none));

    let traps = file("traps.wasm", &module("(unreachable)"));
    let done = plimsoll(&["program", "run", &traps, "--batch", "16", "--json"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        err(&done).contains("4 batches were lost; the first: ") && err(&done).contains("in function `in`"),
        "{}",
        err(&done)
    );
    let told: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(
        (&told["faults"], &told["faulty"], &told["passed"]["packets"]),
        (&4.into(), &64.into(), &0.into())
    );

    let endless = file("endless.wasm", &module("(loop $l (br $l)) (i32.const 0)"));
    let done = plimsoll(&["program", "run", &endless]);
    assert!(
        done.status.code() == Some(1) && err(&done).contains("longer than a call may take"),
        "{}",
        err(&done)
    );
}

#[test]
fn check_and_bench_show_what_a_program_is_and_costs() {
    let folder = tempfile::tempdir().expect("a folder");
    let reflector = compiled(folder.path(), "reflector", &[]).display().to_string();
    let told = json(&["program", "check", &reflector, "--json"]);
    assert_eq!(told["exports"], serde_json::json!(["plimsoll_abi_1", "ingress"]));
    assert!(told["loops"].as_u64().is_some_and(|loops| loops >= 1), "{told}");
    let small = plimsoll(&["program", "check", &reflector, "--memory", "1MiB"]);
    assert!(
        small.status.code() == Some(2) && err(&small).contains("state a larger `memory`"),
        "{}",
        err(&small)
    );
    let costs = json(&["program", "bench", &reflector, "--json"]);
    let cost = |row: usize| costs[row]["ns_per_packet"].as_f64().expect("a number");
    assert!(costs[1]["program"] == "empty" && cost(0) > 0.0 && cost(1) > 0.0, "{costs}");
}

#[test]
fn a_program_that_was_just_begun_compiles_and_does_the_same_in_each_language() {
    let folder = tempfile::tempdir().expect("a folder");
    let to_nine = [packet((4_000, 9), b"x"), packet((4_000, 7), b"x"), arp()];
    let input = capture(folder.path(), &to_nine);
    let c = folder.path().join("c").display().to_string();
    let made = plimsoll(&["program", "new", &c]);
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    assert!(String::from_utf8_lossy(&made.stdout).contains("plimsoll program check program.wasm"));
    let again = plimsoll(&["program", "new", &c]);
    assert!(again.status.code() == Some(2) && err(&again).contains("is there already"), "{}", err(&again));
    let built = Command::new("make").args(["-C", &c]).output().expect("make");
    assert!(built.status.success(), "{}", err(&built));
    let mut modules = vec![format!("{c}/program.wasm")];

    let cargo = Path::new(env!("CARGO"));
    let sysroot =
        Command::new(cargo.with_file_name("rustc")).args(["--print", "sysroot"]).output().expect("rustc");
    let sysroot = Path::new(String::from_utf8_lossy(&sysroot.stdout).trim()).to_owned();
    if sysroot.join("lib/rustlib/wasm32-unknown-unknown").is_dir() {
        let rust = folder.path().join("rust").display().to_string();
        let made = plimsoll(&["program", "new", &rust, "--language", "rust"]);
        assert_eq!(made.status.code(), Some(0), "{}", err(&made));
        let build = ["build", "--release", "--offline", "--target", "wasm32-unknown-unknown"];
        let mut cargo = Command::new(cargo);
        cargo.args(build).current_dir(&rust).env_remove("CARGO_TARGET_DIR");
        let built = cargo.output().expect("cargo");
        assert!(built.status.success(), "{}", err(&built));
        modules.push(format!("{rust}/target/wasm32-unknown-unknown/release/program.wasm"));
    } else {
        skip("Rust has no wasm32-unknown-unknown here: `rustup target add wasm32-unknown-unknown`");
    }
    for module in &modules {
        let checked = json(&["program", "check", module, "--json"]);
        assert_eq!(checked["exports"][0], "plimsoll_abi_1", "{checked}");
        let told = json(&["program", "run", module, "--read", &input, "--json"]);
        assert_eq!(
            (&told["passed"]["packets"], &told["dropped"]["packets"]),
            (&2.into(), &1.into()),
            "{told}"
        );
    }
}

#[test]
fn the_tunnel_seals_what_leaves_and_opens_what_comes() {
    let folder = tempfile::tempdir().expect("a folder");
    let tunnel = compiled(folder.path(), "tunnel", &[]).display().to_string();
    let secret = packet((4_000, 5_000), b"a secret that is not to be read");
    let frames = [secret.clone(), packet((4_000, 7), b"no secret"), arp()];
    let input = capture(folder.path(), &frames);
    let [sealed, opened] = ["sealed", "opened"].map(|name| folder.path().join(name).display().to_string());
    let told =
        json(&["program", "run", &tunnel, "--read", &input, "--way", "egress", "--write", &sealed, "--json"]);
    assert_eq!((&told["passed"]["packets"], &told["unit_requests"]), (&3.into(), &1.into()), "{told}");
    let mut out = written(&sealed);
    out.sort_by_key(Vec::len);
    assert!(out[..2] == [frames[1].clone(), arp()] || out[..2] == [arp(), frames[1].clone()]);
    assert!(is_whole(&out[2]) && out[2].len() == secret.len() + 24, "{:?}", out[2]);
    assert!(!out[2].windows(6).any(|bytes| bytes == b"secret"));
    // What was changed on its way does not arrive.
    let mut forged = out[2].clone();
    *forged.last_mut().expect("a tag") ^= 1;
    let input = capture(folder.path(), &[out[2].clone(), forged, frames[1].clone()]);
    let told = json(&["program", "run", &tunnel, "--read", &input, "--write", &opened, "--json"]);
    assert_eq!((&told["passed"]["packets"], &told["dropped"]["packets"]), (&2.into(), &1.into()), "{told}");
    let mut out = written(&opened);
    out.sort_by_key(Vec::len);
    assert_eq!(out, [frames[1].clone(), secret]);
}
