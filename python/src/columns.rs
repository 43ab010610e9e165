//! Tables as Python lists, a column each.
//!
//! Why: every library for data frames takes a dictionary of lists, so the package needs none of them.
//! Invariant: what was not measured is `None`.

use plimsoll_scenario::{Cells, Grid};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

/// A table as a dictionary from columns' names to lists of strings or floats, in the table's order.
pub(crate) fn columns<'py>(py: Python<'py>, grid: &Grid) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    for column in &grid.columns {
        let cells = match &column.cells {
            Cells::Numbers(numbers, _) => PyList::new(py, numbers)?,
            Cells::Texts(texts) => list_of_texts(py, texts)?,
        };
        columns.set_item(&column.name, cells)?;
    }
    Ok(columns)
}

/// A text that follows itself is one Python object: most columns of texts are names in long stretches.
fn list_of_texts<'py>(py: Python<'py>, texts: &[Option<String>]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    let mut last: Option<(&str, Bound<'py, PyString>)> = None;
    for text in texts {
        let Some(text) = text else {
            list.append(py.None())?;
            continue;
        };
        let shown = match &last {
            Some((same, shown)) if same == text => shown.clone(),
            _ => PyString::new(py, text),
        };
        list.append(&shown)?;
        last = Some((text, shown));
    }
    Ok(list)
}
