//! Checks a policy file and prints what each class is guaranteed.
//!
//! $ cargo run -p plimsoll-policy --example check -- examples/envelopes.yaml

fn main() -> std::process::ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("which file? usage: check FILE [--svg]");
        return 2.into();
    };
    match plimsoll_policy::load(&path) {
        Ok(checked) if std::env::args().any(|arg| arg == "--svg") => {
            print!("{}", plimsoll_policy::svg(&checked))
        }
        Ok(checked) => {
            print!("{}{}", checked.render_warnings(false), plimsoll_policy::tree_text(&checked));
        }
        Err(errors) => {
            eprint!("{}", errors.render(false));
            return 2.into();
        }
    }
    0.into()
}
