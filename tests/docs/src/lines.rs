//! Links from a page to lines of the code.
//!
//! Why: code moves, and a link to a wrong line misleads more than no link.
//! From: GitHub's form, `FILE#L12`; the link's text is the item that stands there, in backticks: `fn parse`.
//! Not here: links to files and folders (`run`).
//! Invariant: a link either leads to its item, or is reported; only line numbers are changed.

/// A page after its links to lines have been looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// The page, with the right line in each link whose item was found.
    pub page: String,
    /// How many such links it has.
    pub links: usize,
    /// Links that led to another line than their item's.
    pub moved: Vec<String>,
    /// Links whose item was not found, or found more than once.
    pub wrong: Vec<String>,
}

/// Finds the right line for each of a page's links to lines. `source` reads a file, named as the page names it.
///
/// ```
/// let page = "See [`fn two`](code.rs#L1).";
/// let lines = plimsoll_docs::right_lines(page, |_| Some("fn one() {}\nfn two() {}\n".to_owned()));
/// assert_eq!(lines.page, "See [`fn two`](code.rs#L2).");
/// assert_eq!(lines.moved, ["`fn two` stands on line 2 of code.rs, not on 1"]);
/// ```
pub fn right_lines(page: &str, source: impl Fn(&str) -> Option<String>) -> Lines {
    let mut lines = Lines::default();
    let mut before = "";
    for piece in page.split_inclusive("](") {
        match before.strip_suffix("](").and(split_target(piece)) {
            Some((file, old, rest)) => {
                lines.links += 1;
                let text = before.rsplit('[').next().unwrap_or("").trim_end_matches("](");
                // The page may break the line inside the text.
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                let new = lines.look_up(&text, file, old, &source);
                lines.page.extend([file, "#L", &new, rest]);
            }
            None => lines.page.push_str(piece),
        }
        before = piece;
    }
    lines
}

impl Lines {
    /// The line to link to: the item's, or the old one if that is not certain.
    fn look_up(
        &mut self,
        text: &str,
        file: &str,
        old: &str,
        source: impl Fn(&str) -> Option<String>,
    ) -> String {
        let item = text.trim_matches('`');
        let code = source(file);
        let found = code.as_deref().map(|code| stands(code, item));
        match found.as_deref() {
            None => self.wrong.push(format!("[{text}]: there is no file {file}")),
            Some([]) => self.wrong.push(format!("[{text}]: {file} has no `{item}`")),
            Some([line]) => {
                let new = line.to_string();
                if new != old {
                    self.moved.push(format!("`{item}` stands on line {new} of {file}, not on {old}"));
                }
                return new;
            }
            Some(many) => {
                let many = many.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                self.wrong.push(format!(
                    "[{text}]: {file} has `{item}` on lines {many}; link to an item that is there once"
                ));
            }
        }
        old.to_owned()
    }
}

/// The target of a link to a line, with what follows: `x.rs#L12) ...` is `x.rs`, `12` and `) ...`.
fn split_target(piece: &str) -> Option<(&str, &str, &str)> {
    let (target, _) = piece.split_once(')')?;
    let (file, line) = target.split_once("#L")?;
    let numeric = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
    numeric.then(|| (file, line, &piece[target.len()..]))
}

/// Lines of the code, counted from one, that have the item and are no comments.
fn stands(code: &str, item: &str) -> Vec<usize> {
    let is_code = |line: &str| !line.trim_start().starts_with("//");
    let lines = (1..).zip(code.lines());
    lines.filter(|(_, line)| is_code(line) && has_words(line, item)).map(|(at, _)| at).collect()
}

/// Whether the line has these words, and not only as parts of longer ones.
fn has_words(line: &str, words: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(words).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + words.len()..]);
        !words.is_empty() && !before.ends_with(part) && !after.starts_with(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str =
        "/// Calls fn send.\nfn send_all() {}\npub fn send<T>(t: T) {}\nfn twice() {}\nfn twice() {}\n";

    fn looked_at(page: &str) -> Lines {
        right_lines(page, |file| (file == "a.rs").then(|| CODE.to_owned()))
    }

    #[test]
    fn a_link_to_its_items_line_stays() {
        let page = "A [page](b.md), [`fn\n  send`](a.rs#L3) and [more](b.md#Links).";
        assert_eq!(looked_at(page), Lines { page: page.to_owned(), links: 1, ..Lines::default() });
    }

    #[test]
    fn an_item_that_has_moved_is_reported_and_followed() {
        let lines = looked_at("[`fn send`](a.rs#L1), [`fn send_all`](a.rs#L9)");
        assert_eq!(lines.page, "[`fn send`](a.rs#L3), [`fn send_all`](a.rs#L2)");
        assert_eq!((lines.moved.len(), lines.wrong.len()), (2, 0));
    }

    #[test]
    fn what_cannot_be_found_is_reported_and_left() {
        for page in ["[`fn gone`](a.rs#L1)", "[`fn send`](b.rs#L3)", "[`fn twice`](a.rs#L4)", "[](a.rs#L3)"] {
            let lines = looked_at(page);
            assert_eq!((lines.page.as_str(), lines.wrong.len()), (page, 1), "{lines:?}");
        }
    }
}
