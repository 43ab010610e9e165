//! `plimsoll check` and `plimsoll schema`.
//!
//! Why: a policy is read by people before packets depend on it.
//! From: the crate `policy`, which does all of it.
//! Not here: rules of the language.
//! Invariant: nothing is printed on standard output for a wrong file, except with `--json`.

use crate::args::{Check, SchemaOf};
use crate::failure::{Failure, print, print_json};

/// Checks a file, and shows what it means.
pub(crate) fn check(args: &Check) -> Result<(), Failure> {
    let checked = match plimsoll_policy::load(&args.file.display().to_string()) {
        Ok(checked) => checked,
        Err(errors) => {
            if args.json {
                print_json(&serde_json::json!({ "ok": false, "problems": errors.records() }))?;
            }
            return Err(Failure::Policy(Box::new(errors)));
        }
    };
    if let Some(svg) = &args.svg {
        let drawing = plimsoll_policy::svg(&checked);
        std::fs::write(svg, drawing)
            .map_err(|error| Failure::io(format!("write {}", svg.display()), &error))?;
    }
    if args.json {
        return print_json(&plimsoll_policy::report(&checked));
    }
    let warnings = checked.render_warnings(false);
    eprint!("{warnings}");
    print(&plimsoll_policy::tree_text(&checked))
}

/// Prints a schema.
pub(crate) fn schema(of: SchemaOf) -> Result<(), Failure> {
    print_json(&match of {
        SchemaOf::Policy => plimsoll_policy::schema(),
        SchemaOf::SubPolicy => plimsoll_policy::sub_schema(),
        SchemaOf::Scenario => plimsoll_scenario::schema(),
    })
}
