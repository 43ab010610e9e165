//! Any text as a policy file: checked or refused with rendered errors, never a panic, and always an end to it.
//!
//! A line `=== NAME` begins a further file, which the first may name as a tenant's policy. Read by another process, a tenant's
//! file says what it says here.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use plimsoll_document::{FileId, LONGEST_ANSWER, Sources, Tree, understand};
use plimsoll_policy::{Checked, Fields, Files, Program, Unread, check_files, check_with, read_file};

fuzz_target!(|text: &str| -> Corpus {
    if text.len() > LONGEST {
        return Corpus::Reject;
    }
    let mut load = |name: &str| file(text, name).map(str::to_owned).ok_or_else(|| "no such file".to_owned());
    let elsewhere = check_files("policy.yaml", &mut Elsewhere(text)).map(|checked| checked.program);
    match check_with("policy.yaml", &mut load) {
        Ok(checked) => {
            assert_eq!(
                elsewhere.ok().as_ref(),
                Some(&checked.program),
                "read elsewhere it is another policy"
            );
            inspect(&checked);
        }
        Err(errors) => {
            let elsewhere = elsewhere.err().map(|errors| errors.render(false));
            assert_eq!(
                elsewhere,
                Some(errors.render(false)),
                "read elsewhere other things are wrong with it"
            );
            assert!(!errors.problems().is_empty(), "a refusal says why");
            assert!(!errors.render(false).is_empty());
            assert_eq!(errors.records().len(), errors.problems().len());
        }
    }
    Corpus::Keep
});

/// The files, tenants' as a process of their own reads them.
struct Elsewhere<'a>(&'a str);

impl Files for Elsewhere<'_> {
    fn text(&mut self, name: &str) -> Result<String, String> {
        file(self.0, name).map(str::to_owned).ok_or_else(|| "no such file".to_owned())
    }

    fn tree(&mut self, sources: &Sources, file: FileId) -> Result<Tree, Unread> {
        let mut answer = Vec::new();
        read_file(&sources.file(file).text, &mut answer).expect("memory takes it");
        assert!(answer.len() <= LONGEST_ANSWER);
        understand(&answer, sources, file).expect("what is answered is understood").map_err(Unread::Syntax)
    }
}

/// The text of a file: what stands before the first `===` line, or what follows that with the name.
fn file<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut files = text.split("\n=== ");
    if name == "policy.yaml" {
        return files.next();
    }
    files
        .skip(1)
        .find_map(|file| file.split_once('\n').filter(|(title, _)| *title == name).map(|(_, text)| text))
}

fn inspect(checked: &Checked) {
    let _ = (checked.render_warnings(false), checked.warning_records());
    let program = &checked.program;
    inspect_tree(program);
    let held: u64 = program.tenants.iter().map(|tenant| u64::from(tenant.descriptors)).sum();
    assert!(held <= u64::from(checked.config.engine.descriptors), "the tenants' caps fit the host's");
    let placement = program.classify(&Fields::default());
    assert!((placement.class.0 as usize) < program.nodes.len());
    assert!(placement.limits.iter().all(|limit| (limit.0 as usize) < program.limits.len()));
}

/// Asserts the order that the engine relies on: parents come first, and every link goes both ways.
fn inspect_tree(program: &Program) {
    assert!(program.nodes[0].parent.is_none());
    for (index, node) in program.nodes.iter().enumerate() {
        assert_eq!(node.parent.is_none(), index == 0, "one root, and it is the first");
        assert!(node.weight > 0);
        for child in &node.children {
            assert!(child.0 as usize > index);
            assert_eq!(program.node(*child).parent.map(|parent| parent.0 as usize), Some(index));
        }
    }
}

/// Longer texts only make it slower.
const LONGEST: usize = 8_192;
