//! A table for programs: columns with names, each of texts or of numbers.
//!
//! Why: one table is written in two formats, and must say the same in both.
//! From: tidy tables: one line an observation, one column a variable.
//! Not here: formats (`csv`, `parquet`), which tables there are (`tables`).
//! Invariant: all columns have as many cells.

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grid {
    /// The columns, all of one length.
    pub columns: Vec<Column>,
}

/// One column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// The name, with the unit.
    pub name: String,
    /// The cells.
    pub cells: Cells,
}

/// The cells of a column; a cell may be empty.
#[derive(Clone, Debug, PartialEq)]
pub enum Cells {
    /// Texts.
    Texts(Vec<Option<String>>),
    /// Numbers, and the decimals that text shows; all of them when absent.
    Numbers(Vec<Option<f64>>, Option<usize>),
}

/// One cell.
#[derive(Clone, Debug)]
pub(super) enum Cell {
    Text(String),
    Number(Option<f64>),
}

impl Grid {
    /// A column of texts, without lines yet.
    pub(super) fn text(mut self, name: &str) -> Self {
        self.columns.push(Column { name: name.to_owned(), cells: Cells::Texts(Vec::new()) });
        self
    }

    /// A column of numbers.
    pub(super) fn number(self, name: &str) -> Self {
        self.rounded(name, None)
    }

    /// A column of numbers that text shows with `decimals` decimals.
    pub(super) fn decimals(self, name: &str, decimals: usize) -> Self {
        self.rounded(name, Some(decimals))
    }

    fn rounded(mut self, name: &str, decimals: Option<usize>) -> Self {
        self.columns.push(Column { name: name.to_owned(), cells: Cells::Numbers(Vec::new(), decimals) });
        self
    }

    /// Adds a line. A cell that is missing, or of the other kind, stays empty.
    pub(super) fn line(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let mut cells = cells.into_iter();
        for column in &mut self.columns {
            match (&mut column.cells, cells.next()) {
                (Cells::Texts(texts), Some(Cell::Text(text))) => texts.push(Some(text)),
                (Cells::Texts(texts), _) => texts.push(None),
                (Cells::Numbers(numbers, _), Some(Cell::Number(number))) => numbers.push(number),
                (Cells::Numbers(numbers, _), _) => numbers.push(None),
            }
        }
    }

    /// The number of lines.
    pub(super) fn lines(&self) -> usize {
        self.columns.first().map_or(0, |column| column.cells.len())
    }
}

impl Cells {
    fn len(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Numbers(numbers, _) => numbers.len(),
        }
    }

    /// A cell as text.
    pub(super) fn shown(&self, line: usize) -> String {
        match self {
            Self::Texts(texts) => texts.get(line).cloned().flatten().unwrap_or_default(),
            Self::Numbers(numbers, decimals) => match (numbers.get(line).copied().flatten(), decimals) {
                (None, _) => String::new(),
                (Some(number), None) => number.to_string(),
                (Some(number), Some(decimals)) => format!("{number:.decimals$}"),
            },
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Self::Number(Some(number))
    }
}

impl From<Option<f64>> for Cell {
    fn from(number: Option<f64>) -> Self {
        Self::Number(number)
    }
}
