//! Files in memory, and places in them.
//!
//! Why: every message must point at a file, a line and a column, also when a policy is spread over many files.
//! From: `docs/policy.md`, "Errors".
//! Not here: reading files (the caller's loader does that).
//! Invariant: a [`Mark`] lies inside its file's text, on character boundaries.

use std::ops::Range;
use std::sync::Arc;

use super::lines::Lines;

/// Which of a document's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// A stretch of a file's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Which file.
    pub file: FileId,
    /// Bytes from its start.
    pub offset: u32,
    /// Bytes; may be zero.
    pub len: u32,
}

/// One file of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFile {
    /// The path as the operator wrote it, or as the including file makes it.
    pub name: String,
    /// Its text.
    pub text: Arc<String>,
    /// Where its lines begin.
    lines: Lines,
}

/// The files of a document, the one that names the others first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    files: Vec<SourceFile>,
}

/// A value and where it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub at: Mark,
}

/// The name of a thing and where it is written.
pub type Name = Located<String>;

impl Mark {
    /// Bytes of its file.
    #[must_use]
    pub fn range(self) -> Range<usize> {
        self.offset as usize..self.offset as usize + self.len as usize
    }
}

impl From<Range<usize>> for Mark {
    /// A stretch of the first file, or of a text that is none.
    fn from(range: Range<usize>) -> Self {
        let clamp = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Self { file: FileId(0), offset: clamp(range.start), len: clamp(range.len()) }
    }
}

impl SourceFile {
    /// Line and column of a byte that begins a character, both counted from 0; columns count characters.
    pub(super) fn position(&self, at: usize) -> (usize, usize) {
        self.lines.position(&self.text, at)
    }

    /// The line around a byte, without its end.
    pub(super) fn line_around(&self, at: usize) -> Range<usize> {
        self.lines.around(&self.text, at)
    }
}

impl Sources {
    /// One file.
    #[must_use]
    pub fn one(name: &str, text: &str) -> Self {
        let mut sources = Self::default();
        sources.add(name, text.to_owned());
        sources
    }

    /// Adds a file.
    pub fn add(&mut self, name: &str, text: String) -> FileId {
        let id = FileId(u32::try_from(self.files.len()).unwrap_or(u32::MAX));
        self.files.push(SourceFile { name: name.to_owned(), text: Arc::new(text), lines: Lines::default() });
        id
    }

    /// The file behind an id.
    #[must_use]
    pub fn file(&self, id: FileId) -> &SourceFile {
        &self.files[id.0 as usize]
    }

    /// Every file, the one that names the others first.
    #[must_use]
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Line and column of a mark's start, both counted from 1; columns count characters.
    #[must_use]
    pub fn position(&self, mark: Mark) -> (usize, usize) {
        let (line, column) = self.file(mark.file).position(mark.offset as usize);
        (line + 1, column + 1)
    }

    /// `file:line:column`.
    #[must_use]
    pub fn place(&self, mark: Mark) -> String {
        let (line, column) = self.position(mark);
        format!("{}:{line}:{column}", self.file(mark.file).name)
    }
}

impl<T> Located<T> {
    /// A value at its place.
    pub fn new(value: T, at: Mark) -> Self {
        Self { value, at }
    }
}
