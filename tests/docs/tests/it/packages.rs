//! The Debian package: its files are those of docs/install.md, its fields are sound, and its SBOM has what Cargo.lock has.
//!
//! `make test-packages` installs and upgrades it; here it is only built, from the debug binary and uncompressed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::pages::bench;

/// A package that was built, and a folder with its files.
struct Package {
    deb: PathBuf,
    files: PathBuf,
    _work: tempfile::TempDir,
}

impl Package {
    fn new() -> Self {
        let bench = bench();
        let work = tempfile::tempdir().expect("a temporary folder");
        let files = work.path().join("files");
        let script = bench.root.join("scripts/deb.sh");
        let binary = bench.bin.join("plimsoll");
        let built = run(Command::new(script).arg(binary).arg(work.path()).args(["7", "none"]));
        let deb = PathBuf::from(built.trim_end());
        run(Command::new("dpkg-deb").arg("--raw-extract").arg(&deb).arg(&files));
        Self { deb, files, _work: work }
    }

    /// The paths of its files, below `/usr`.
    fn paths(&self) -> Vec<String> {
        let listed = run(Command::new("dpkg-deb").arg("--contents").arg(&self.deb));
        let paths = listed.lines().filter(|line| !line.starts_with('d'));
        let paths = paths.filter_map(|line| {
            Some(line.split_once(" ./")?.1.split(" -> ").next()?.trim_start_matches("usr/").to_owned())
        });
        paths.collect()
    }

    fn field(&self, name: &str) -> String {
        run(Command::new("dpkg-deb").arg("--field").arg(&self.deb).arg(name)).trim_end().to_owned()
    }
}

fn run(command: &mut Command) -> String {
    let done = command.output().expect("it is installed");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

#[test]
fn the_package_is_what_the_page_says() {
    if !Path::new("/etc/debian_version").exists() {
        return eprintln!("skipped: only Debian and Ubuntu have the tools");
    }
    let package = Package::new();
    has_the_files_of_the_page(&package);
    has_sound_fields(&package);
    has_a_page_for_each_command(&package);
    let sbom =
        fs::read_to_string(package.files.join("usr/share/doc/plimsoll/sbom.cdx.json")).expect("the SBOM");
    lists_what_is_linked(&serde_json::from_str(&sbom).expect("JSON"));
    let licences = package.files.join("usr/share/doc/plimsoll/third-party-licences.gz");
    assert!(fs::metadata(licences).expect("licences").len() > 10_000);
}

fn has_the_files_of_the_page(package: &Package) {
    // What only a Debian package has.
    const DEBIAN: [&str; 3] = ["changelog.gz", "changelog.Debian.gz", "copyright"];
    let page = fs::read_to_string(bench().root.join("docs/install.md")).expect("docs/install.md");
    let table =
        page.split("| --- | --- |").nth(2).and_then(|rest| rest.split("\n\n").next()).expect("a table");
    let rows: Vec<&str> = table.split("\n| `").skip(1).filter_map(|row| row.split('`').next()).collect();
    assert!(rows.len() > 10, "{rows:?}");
    let mut used = BTreeSet::new();
    for path in package.paths() {
        let name = path.strip_prefix("share/doc/plimsoll/").unwrap_or_default();
        let plain = if path.ends_with("/changelog.gz") { &path } else { path.trim_end_matches(".gz") };
        match rows.iter().find(|row| names(row, plain)) {
            Some(row) => used.insert(*row),
            None if DEBIAN.contains(&name) => continue,
            None => panic!("{path} is in the package, and not in docs/install.md"),
        };
    }
    let missing: Vec<_> = rows.iter().filter(|row| !used.contains(**row)).collect();
    assert!(missing.is_empty(), "in docs/install.md, and not in the package: {missing:?}");
}

/// Whether a row's path, in which `*` stands for any name, names this file.
fn names(row: &str, path: &str) -> bool {
    match row.split_once('*') {
        Some((start, end)) => path.starts_with(start) && path.ends_with(end),
        None => row == path,
    }
}

fn has_sound_fields(package: &Package) {
    let version = run(Command::new(bench().bin.join("plimsoll")).arg("--version"));
    let version = version.split(' ').nth(1).expect("a version");
    assert_eq!(package.field("Package"), "plimsoll");
    assert_eq!(package.field("Version"), format!("{}-7", version.trim_end()));
    let depends = package.field("Depends");
    assert!(depends.contains("libc6 (>= "), "{depends}");
    let binary = fs::metadata(package.files.join("usr/bin/plimsoll")).expect("the binary").len();
    let size: u64 = package.field("Installed-Size").parse().expect("a number");
    assert!(
        size * 1_024 > binary && size * 1_024 < binary + (4 << 20),
        "{size} KiB, the binary has {binary} B"
    );
    for script in ["postinst", "prerm", "postrm"] {
        run(Command::new("sh").arg("-n").arg(package.files.join("DEBIAN").join(script)));
    }
    let unit =
        fs::read_to_string(package.files.join("usr/lib/systemd/system/plimsoll.service")).expect("a unit");
    assert!(unit.contains("\nExecStart=/usr/bin/plimsoll run") && !unit.contains("@BIN@"), "{unit}");
}

fn has_a_page_for_each_command(package: &Package) {
    let help = run(Command::new(bench().bin.join("plimsoll")).arg("help"));
    let commands = help.split("Commands:").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a list");
    // A command's line begins with two blanks, and the second line of its text with more.
    let names =
        commands.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    let names: Vec<&str> =
        names.filter_map(|line| line.split(' ').next()).filter(|name| *name != "help").collect();
    assert!(names.contains(&"check") && names.contains(&"run"), "{names:?}");
    let pages = package.paths();
    for name in names {
        let page = format!("share/man/man1/plimsoll-{name}.1.gz");
        assert!(pages.contains(&page), "no {page}");
    }
}

/// The fields that CycloneDX 1.5 requires, and crates as in Cargo.lock.
fn lists_what_is_linked(sbom: &Value) {
    assert_eq!((&sbom["bomFormat"], &sbom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    assert!(sbom["version"].as_u64().is_some_and(|version| version >= 1));
    assert_eq!(sbom["metadata"]["component"]["type"], "application");
    let locked = locked();
    let components = sbom["components"].as_array().expect("a list");
    let mut refs = BTreeSet::from([text(&sbom["metadata"]["component"]["bom-ref"])]);
    for component in components {
        let (name, version) = (text(&component["name"]), text(&component["version"]));
        assert_eq!(component["type"], "library", "{name}");
        assert!(refs.insert(text(&component["bom-ref"])), "{name} {version} is there twice");
        assert!(!text(&component["licenses"][0]["expression"]).contains('/'), "{component}");
        if name == "rust-std" {
            continue;
        }
        assert_eq!(text(&component["purl"]), format!("pkg:cargo/{name}@{version}"));
        let checksum = component["hashes"][0]["content"].as_str().unwrap_or_default();
        assert_eq!(locked.get(&(name, version)).map(String::as_str), Some(checksum), "{component}");
    }
    for (name, linked) in
        [("plimsoll-nic", true), ("clap", true), ("rust-std", true), ("proptest", false), ("syn", false)]
    {
        assert_eq!(components.iter().any(|component| component["name"] == name), linked, "{name}");
    }
    let dependencies = sbom["dependencies"].as_array().expect("a list");
    let users: BTreeSet<String> = dependencies.iter().map(|row| text(&row["ref"])).collect();
    assert_eq!(users, refs, "each component says what it uses");
    let used = dependencies.iter().flat_map(|row| row["dependsOn"].as_array().expect("a list"));
    assert!(used.map(text).all(|used| refs.contains(&used)));
}

/// The checksum of each crate, by name and version; empty for our own.
fn locked() -> BTreeMap<(String, String), String> {
    let lock = fs::read_to_string(bench().root.join("Cargo.lock")).expect("Cargo.lock");
    let value = |entry: &str, key: &str| {
        let rest = entry.split_once(&format!("\n{key} = \""))?.1;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let entries = lock.split("[[package]]").skip(1);
    let crates = entries.filter_map(|entry| {
        Some((value(entry, "name")?, value(entry, "version")?, value(entry, "checksum")))
    });
    crates.map(|(name, version, sum)| ((name, version), sum.unwrap_or_default())).collect()
}

fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

/// `make install` and the package have one list.
#[test]
fn only_one_script_installs() {
    let root = bench().root;
    for script in ["deb.sh", "image.sh"] {
        let text = fs::read_to_string(Path::new(&root).join("scripts").join(script)).expect("a script");
        assert!(text.contains("/install.sh\""), "{script}");
    }
}
