//! The Makefile and the scripts: their shell commands parse, and its targets run every test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the checkout")
}

fn said(done: &Output) -> String {
    String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr)
}

/// The names before a colon at the beginning of a line.
fn targets(makefile: &str) -> Vec<&str> {
    let named = makefile.lines().filter_map(|line| Some(line.split_once(':')?.0));
    let plain = |name: &&str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    named.filter(plain).collect()
}

/// The commands of a target, as `make` would hand each of them to a shell.
fn recipes(makefile: &Path, target: &str) -> Vec<String> {
    let done = Command::new("make")
        .args(["--dry-run", "--no-print-directory", "--file"])
        .arg(makefile)
        .arg(target)
        .current_dir(root())
        .env_remove("MAKEFLAGS")
        .env_remove("MFLAGS")
        .output()
        .expect("make is installed");
    assert!(done.status.success(), "make -n {target}: {}", said(&done));
    let text = String::from_utf8(done.stdout).expect("make writes text").replace("\\\n", "");
    text.lines().map(str::to_owned).collect()
}

/// What the shell says of a command that it cannot parse.
fn error_in(command: &str) -> Option<String> {
    let done = Command::new("sh").args(["-n", "-c", command]).output().expect("sh is installed");
    (!done.status.success()).then(|| said(&done))
}

#[test]
fn each_command_of_the_makefile_parses() {
    let makefile = root().join("Makefile");
    let text = fs::read_to_string(&makefile).expect("Makefile");
    let targets = targets(&text);
    assert!(targets.contains(&"demo") && targets.contains(&"test"), "{targets:?}");
    for target in targets {
        for command in recipes(&makefile, target) {
            if let Some(error) = error_in(&command) {
                panic!("make {target}: {error}in: {command}");
            }
        }
    }
}

#[test]
fn a_quote_that_is_left_open_is_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let makefile = folder.path().join("Makefile");
    let text = "demo:\n\t@echo 'a tenant's share'\n\t@echo 'the link's rate'\n";
    fs::write(&makefile, text).expect("a temporary file");
    let commands = recipes(&makefile, targets(text)[0]);
    let errors = commands.iter().filter(|command| error_in(command).is_some()).count();
    assert_eq!(errors, 2, "two mistakes that hide each other when read together: {commands:?}");
}

#[test]
fn each_script_parses() {
    let root = root();
    let folders = ["scripts", "fuzz", ".ci"].map(|folder| root.join(folder));
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("a folder").flatten());
    let mut scripts = 0;
    for file in files.map(|file| file.path()).filter(|path| path.is_file()) {
        let script = fs::read(&file).expect("a readable file");
        if script.starts_with(b"#!/bin/sh\n") {
            let done = Command::new("sh").arg("-n").arg(&file).output().expect("sh is installed");
            assert!(done.status.success(), "{}: {}", file.display(), said(&done));
            scripts += 1;
        }
    }
    assert!(scripts >= 6, "only {scripts} scripts were found");
}

/// `make unit` runs `--test '[!l]*'` and `make live` runs `--test live`: together all, if no third name begins with `l`.
#[test]
fn make_runs_each_test_binary_once() {
    let done = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(done.status.success(), "cargo metadata: {}", said(&done));
    let text = String::from_utf8(done.stdout).expect("cargo writes text");
    let tests: Vec<&str> = text.split("\"kind\":[\"test\"]").skip(1).filter_map(name_in).collect();
    assert!(tests.contains(&"it") && tests.contains(&"live"), "{tests:?}");
    let neither: Vec<_> = tests.iter().filter(|name| name.starts_with('l') && **name != "live").collect();
    assert!(neither.is_empty(), "neither `make live` nor `make unit` runs these tests: {neither:?}");
}

/// The name of the target that this part of cargo's JSON describes.
fn name_in(part: &str) -> Option<&str> {
    part.split_once("\"name\":\"")?.1.split('"').next()
}
