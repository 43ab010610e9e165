//! What came out: verdicts, JSON, tables and reports of each point.
//!
//! Why: Python shows what the command line shows, from the same code.
//! Not here: frames and plots, which Python makes of the tables.
//! Invariant: an index outside of the points is an `IndexError`.

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_scenario::{Point, Results, Row, Status, Verdict};
use plimsoll_sim::{Outcome, Study};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::columns::columns;
use crate::off_thread::off_thread;
use crate::refusal::Refusal;

/// The outcome of every point of a study.
#[pyclass(frozen, module = "plimsoll._native")]
pub(crate) struct Outcomes {
    inner: Arc<Inner>,
}

struct Inner {
    study: Arc<Study>,
    outcomes: Vec<Outcome>,
    verdicts: Vec<Vec<Verdict>>,
}

impl Inner {
    fn point(&self, index: usize) -> (&Point, &Results, &[Verdict]) {
        (&self.study.points()[index], &self.outcomes[index].results, &self.verdicts[index])
    }

    fn rows(&self) -> Vec<Row> {
        let rows = |index| {
            let (point, results, verdicts) = self.point(index);
            plimsoll_scenario::rows(point, results, verdicts)
        };
        (0..self.outcomes.len()).flat_map(rows).collect()
    }
}

impl Outcomes {
    pub(crate) fn of(study: Arc<Study>, outcomes: Vec<Outcome>) -> Self {
        let judged = study.points().iter().zip(&outcomes);
        let verdicts = judged.map(|(point, outcome)| plimsoll_sim::verdicts(point, outcome)).collect();
        Self { inner: Arc::new(Inner { study, outcomes, verdicts }) }
    }

    fn known(&self, index: usize) -> PyResult<()> {
        let points = self.inner.outcomes.len();
        let why = || PyIndexError::new_err(format!("there is no point {index}, but {points} from 0"));
        if index < points { Ok(()) } else { Err(why()) }
    }
}

fn pretty(value: &serde_json::Value) -> Result<String, Refusal> {
    serde_json::to_string_pretty(value).map_err(|error| Refusal::Failed(error.to_string()))
}

#[pymethods]
impl Outcomes {
    /// The number of points.
    fn __len__(&self) -> usize {
        self.inner.outcomes.len()
    }

    /// Whether no expectation failed at a point.
    fn passed(&self, index: usize) -> PyResult<bool> {
        self.known(index)?;
        Ok(self.inner.verdicts[index].iter().all(|verdict| verdict.status != Status::Failed))
    }

    /// Everything of all points, as `plimsoll sim --json` prints it.
    fn json(&self, py: Python<'_>) -> PyResult<String> {
        let inner = Arc::clone(&self.inner);
        off_thread(py, move |_| pretty(&inner.study.json(&inner.outcomes, &inner.verdicts)))
    }

    /// Everything of one point.
    fn json_of(&self, py: Python<'_>, index: usize) -> PyResult<String> {
        self.known(index)?;
        let inner = Arc::clone(&self.inner);
        off_thread(py, move |_| {
            let (point, results, verdicts) = inner.point(index);
            pretty(&plimsoll_scenario::json(&point.scenario, results, verdicts))
        })
    }

    /// A point's table as a terminal of this width shows it.
    fn text_of(&self, py: Python<'_>, index: usize, width: u16) -> PyResult<String> {
        self.known(index)?;
        let inner = Arc::clone(&self.inner);
        off_thread(py, move |_| {
            let (Point { scenario, .. }, results, verdicts) = inner.point(index);
            let summaries = plimsoll_scenario::summarise(scenario, results);
            Ok(plimsoll_scenario::table(scenario, results, &summaries, verdicts, width, false))
        })
    }

    /// The table of all points as a terminal of this width shows it.
    fn text(&self, py: Python<'_>, width: u16) -> PyResult<String> {
        let inner = Arc::clone(&self.inner);
        off_thread(py, move |_| Ok(plimsoll_scenario::sweep_table(&inner.rows(), width)))
    }

    /// A point's table of this name, as columns.
    fn columns_of<'py>(&self, py: Python<'py>, index: usize, table: &str) -> PyResult<Bound<'py, PyDict>> {
        self.known(index)?;
        let (inner, name) = (Arc::clone(&self.inner), table.to_owned());
        let grid = off_thread(py, move |_| {
            let (Point { scenario, .. }, results, _) = inner.point(index);
            Ok(plimsoll_scenario::table_named(&name, scenario, results))
        })?;
        let grid = grid.ok_or_else(|| PyValueError::new_err(format!("there is no table `{table}`")))?;
        columns(py, &grid)
    }

    /// The sweep's table, as columns: a line for each point and system.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = Arc::clone(&self.inner);
        let grid = off_thread(py, move |_| Ok(plimsoll_scenario::sweep_grid(&inner.rows())))?;
        columns(py, &grid)
    }

    /// Writes a point's report into a folder; returns the page's path.
    fn report_of(&self, py: Python<'_>, index: usize, folder: PathBuf) -> PyResult<PathBuf> {
        self.known(index)?;
        let inner = Arc::clone(&self.inner);
        off_thread(py, move |_| {
            let (Point { scenario, .. }, results, verdicts) = inner.point(index);
            let written = plimsoll_scenario::report(scenario, results, verdicts, &folder);
            let place = folder.display();
            let why = |error| format!("the report cannot be written into the folder `{place}`: {error}");
            written.map(|report| report.html).map_err(|error| Refusal::Failed(why(error)))
        })
    }
}
