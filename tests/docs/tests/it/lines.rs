//! Links from the pages to lines of the code lead to the items that they name.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_docs::right_lines;

/// How to put the right lines into the pages.
const MEND: &str = "UPDATE_GOLDEN=1 cargo test -p plimsoll-docs --test it lines::";

/// `README.md` and the like, the pages of `docs/`, and the decisions.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the checkout");
    let folders = [root.clone(), root.join("docs"), root.join("docs/decisions")];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("a folder").flatten());
    let mut pages: Vec<PathBuf> = files.map(|file| file.path()).collect();
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

#[test]
fn links_to_lines_lead_to_what_they_name() {
    let (mut links, mut moved, mut wrong) = (0, Vec::new(), Vec::new());
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a readable page");
        let folder = page.parent().expect("a folder");
        let lines = right_lines(&text, |file| fs::read_to_string(folder.join(file)).ok());
        let of_page = |problem: String| format!("{}: {problem}", page.display());
        links += lines.links;
        wrong.extend(lines.wrong.into_iter().map(of_page));
        if std::env::var_os("UPDATE_GOLDEN").is_some() && lines.page != text {
            fs::write(&page, lines.page).expect("a page that can be written");
        } else {
            moved.extend(lines.moved.into_iter().map(of_page));
        }
    }
    assert!(wrong.is_empty(), "mend these by hand:\n{}", wrong.join("\n"));
    assert!(moved.is_empty(), "run `{MEND}`:\n{}", moved.join("\n"));
    assert!(
        links >= 50,
        "docs/architecture.md walks through the code, but the pages have {links} such links"
    );
}
