//! `plimsoll check` and `plimsoll schema`.
//!
//! Why: an operator checks a policy before packets depend on it.
//! From: the crates `policy` and `scenario`, which do the checking.
//! Not here: rules of the languages.
//! Invariant: for a wrong file there is no standard output, except with `--json`.

mod included;
mod memory;

use std::path::Path;

use plimsoll_policy::{Checked, Errors, FileRead};
use plimsoll_scenario::FileKind;

use crate::args::{Check, SchemaOf};
use crate::failure::{Failure, print, print_json};
use crate::reader;

/// Checks a file, whose kind follows from its keys, and shows its meaning.
pub(crate) fn check(args: &Check) -> Result<(), Failure> {
    let file = args.file.display().to_string();
    let Some(read) = reader::read_first(&file)? else { return policy(args, reader::load(&file)) };
    let kind = FileKind::of(&read.keys());
    if args.memory && kind != FileKind::Policy {
        let why = format!("{file} is {}; `--memory` counts for the operator's policy file", kind.words());
        return Err(Failure::Wrong(why));
    }
    if args.svg.is_some() && kind != FileKind::Policy {
        let why = format!("{file} is {}; `--svg` draws the operator's policy file", kind.words());
        return Err(Failure::Wrong(why));
    }
    match kind {
        FileKind::Policy => policy(args, reader::load_read(read)),
        FileKind::Included => included(args, &file, included::load(&file)),
        FileKind::SubPolicy => sub_policy(args, &file, reader::load_sub_policy(read)),
        FileKind::Scenario => scenario(args, &read),
    }
}

/// Fails when a file is clearly of another kind than `wanted`; without this, all its keys would be reported as wrong.
pub(crate) fn want(file: &Path, wanted: FileKind) -> Result<(), Failure> {
    let file = file.display().to_string();
    let keys = reader::read_first(&file)?.map_or_else(Vec::new, |read| read.keys());
    wanted.want(&file, &keys).map_err(Failure::Wrong)
}

fn policy(args: &Check, checked: Result<Checked, Errors>) -> Result<(), Failure> {
    let checked = checked.map_err(|errors| refused(args, errors))?;
    programs(args, &checked)?;
    if let Some(svg) = &args.svg {
        let drawing = plimsoll_policy::svg(&checked);
        std::fs::write(svg, drawing)
            .map_err(|error| Failure::io(format!("write {}", svg.display()), &error))?;
    }
    if args.memory {
        return memory::show(args.json, &checked);
    }
    if args.json {
        return print_json(&plimsoll_policy::report(&checked));
    }
    eprint!("{}", checked.render_warnings(false));
    print(&plimsoll_policy::tree_text(&checked))
}

/// Checks the modules of tenants' programs, as a daemon does when it starts them.
fn programs(args: &Check, checked: &Checked) -> Result<(), Failure> {
    let wrong: Vec<String> =
        plimsoll_daemon::check_programs(checked).iter().map(ToString::to_string).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    if args.json {
        let problems: Vec<_> =
            wrong.iter().map(|message| serde_json::json!({ "message": message })).collect();
        print_json(&serde_json::json!({ "ok": false, "problems": problems }))?;
    }
    Err(Failure::Wrong(wrong.join("\n")))
}

/// A file of the folder that a policy includes, by itself.
fn included(args: &Check, file: &str, checked: Result<Checked, Errors>) -> Result<(), Failure> {
    let checked = checked.map_err(|errors| refused(args, errors))?;
    programs(args, &checked)?;
    let tenants: Vec<&str> = checked.config.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    if args.json {
        let warnings = checked.warning_records();
        return print_json(
            &serde_json::json!({ "ok": true, "kind": "included", "file": file, "tenants": tenants, "warnings": warnings }),
        );
    }
    eprint!("{}", checked.render_warnings(false));
    print(&format!(
        "{file}: an included file with the tenants {}; it has no mistakes of its own\nThe file that includes its folder decides whether \
         they fit: run `plimsoll check` with that one\n",
        tenants.join(", ")
    ))
}

/// The file of a tenant or an application, by itself.
fn sub_policy(args: &Check, file: &str, checked: Result<Checked, Errors>) -> Result<(), Failure> {
    let checked = checked.map_err(|errors| refused(args, errors))?;
    if args.json {
        let warnings = checked.warning_records();
        return print_json(
            &serde_json::json!({ "ok": true, "kind": "sub-policy", "file": file, "warnings": warnings }),
        );
    }
    eprint!("{}", checked.render_warnings(false));
    print(&plimsoll_policy::sub_policy_text(&checked))
}

/// Checks a scenario in all its forms, with the policies of its systems.
fn scenario(args: &Check, read: &FileRead) -> Result<(), Failure> {
    let file = read.path();
    let scenario = plimsoll_scenario::check(read).map_err(|wrong| {
        let json = || print_json(&serde_json::json!({ "ok": false, "problems": wrong.records() }));
        match args.json.then(json) {
            Some(Err(failure)) => failure,
            _ => Failure::Rejected(Box::new(wrong)),
        }
    })?;
    let names = |names: Vec<&str>| names.join(", ");
    let systems = names(scenario.systems.iter().map(|system| system.name.as_str()).collect());
    if args.json {
        return print_json(
            &serde_json::json!({ "ok": true, "kind": "scenario", "file": file, "name": scenario.name }),
        );
    }
    print(&format!(
        "{file}: a scenario with {} tenants, {} workloads and {} expectations, for the systems {systems}; it has no \
         mistakes\nRun it with `plimsoll {} {file}`\n",
        scenario.tenants.len(),
        scenario.workloads.len(),
        scenario.expect.len(),
        if scenario.live { "lab" } else { "sim" },
    ))
}

/// The failure; with `--json`, prints its problems on standard output too.
fn refused(args: &Check, errors: Errors) -> Failure {
    let json = || print_json(&serde_json::json!({ "ok": false, "problems": errors.records() }));
    match args.json.then(json) {
        Some(Err(failure)) => failure,
        _ => Failure::Policy(Box::new(errors)),
    }
}

/// Prints a schema.
pub(crate) fn schema(of: SchemaOf) -> Result<(), Failure> {
    print_json(&match of {
        SchemaOf::Policy => plimsoll_policy::schema(),
        SchemaOf::SubPolicy => plimsoll_policy::sub_schema(),
        SchemaOf::Included => plimsoll_policy::included_schema(),
        SchemaOf::Scenario => plimsoll_scenario::schema(),
        SchemaOf::Api => plimsoll_daemon::openapi().clone(),
    })
}

/// Fails when a scenario's policies are wrong, and shows all their mistakes.
pub(crate) fn hold(wrong: Vec<(String, Errors)>) -> Result<(), Failure> {
    let mut wrong: Vec<Errors> = wrong.into_iter().map(|(_, errors)| errors).collect();
    let Some(last) = wrong.pop() else { return Ok(()) };
    wrong.iter().for_each(|errors| eprint!("{}", errors.render(false)));
    Err(Failure::Policy(Box::new(last)))
}
