//! A scenario with its settings and seeds, and its runs.
//!
//! Why: one file gives one result here, on the command line and on a cluster.
//! From: `plimsoll_sim::Study`.
//! Not here: what is made of results (`outcomes`).

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use plimsoll_document as document;
use plimsoll_policy::{FileRead, Unread};
use plimsoll_scenario::{FileKind, Form, MAX_FILE, Point, Scenario};
use plimsoll_sim::{Finished, Options};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::off_thread::off_thread;
use crate::outcomes::Outcomes;
use crate::refusal::Refusal;

/// Points of a grid, as many as a file's `sweep` may have.
const MOST_POINTS: usize = 10_000;

/// Values set by their paths.
type Settings = Vec<(String, String)>;

/// What a scenario has, by name: its name, its text about itself, systems, tenants, workloads.
type Contents = (String, String, Vec<String>, Vec<String>, Vec<String>);

/// Reads a scenario; returns its text and what it has.
#[pyfunction]
#[pyo3(signature = (path, text=None))]
pub(crate) fn load(py: Python<'_>, path: String, text: Option<String>) -> PyResult<(String, Contents)> {
    off_thread(py, move |_| {
        let text = text.map_or_else(|| read(&path), Ok)?;
        kind(&path, &text)?;
        let scenario = points(&path, &text, Form::Virtual, &[])?.swap_remove(0).scenario;
        let contents = (
            scenario.name.clone(),
            scenario.about.clone(),
            scenario.systems.iter().map(|system| system.name.clone()).collect(),
            scenario.tenants.iter().map(|tenant| tenant.name.clone()).collect(),
            scenario.workloads.iter().map(|workload| workload.name.clone()).collect(),
        );
        Ok((text, contents))
    })
}

/// Checks a scenario in all its forms, with the policies of its systems.
#[pyfunction]
pub(crate) fn check(py: Python<'_>, path: String, text: String) -> PyResult<()> {
    off_thread(py, move |_| {
        kind(&path, &text)?;
        plimsoll_scenario::check(&parsed(&path, &text)?).map(drop).map_err(Refusal::Wrong)
    })
}

fn read(path: &str) -> Result<String, Refusal> {
    plimsoll_policy::read_text(Path::new(path), MAX_FILE).or_else(|_| {
        // The scenario's reader fails in the same way, and has the message.
        Scenario::load_points(Path::new(path), Form::Virtual, &[])?;
        Err(Refusal::Argument(format!("{path} has just changed; read it again")))
    })
}

fn parsed(path: &str, text: &str) -> Result<FileRead, Refusal> {
    if text.len() as u64 > MAX_FILE.as_u64() {
        return Err(Refusal::Argument(format!("{path}: the text has more than {MAX_FILE}; shorten it")));
    }
    let mut parse = |sources: &_, file| document::parse(sources, file).map_err(Unread::Syntax);
    FileRead::of(path, text, &mut parse).map_err(Refusal::Argument)
}

/// Fails for a policy file: otherwise each of its keys would be a mistake.
fn kind(path: &str, text: &str) -> Result<(), Refusal> {
    FileKind::Scenario.want(path, &parsed(path, text)?.keys()).map_err(Refusal::Argument)
}

fn points(path: &str, text: &str, form: Form, settings: &[(String, String)]) -> Result<Vec<Point>, Refusal> {
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    Ok(Scenario::points(text, path, folder, form, settings)?)
}

/// Every combination of one choice of each axis, the last axis varying fastest.
fn combinations(grid: &[Vec<Settings>]) -> Result<Vec<Settings>, Refusal> {
    let mut all = vec![Settings::new()];
    for axis in grid {
        if all.len().saturating_mul(axis.len()) > MOST_POINTS {
            let why = format!("the grid has more than {MOST_POINTS} points; vary fewer values at once");
            return Err(Refusal::Argument(why));
        }
        let with = |one: &Settings, choice: &Settings| one.iter().chain(choice).cloned().collect();
        all = all.iter().flat_map(|one| axis.iter().map(move |choice| with(one, choice))).collect();
    }
    Ok(all)
}

/// What is run: a scenario's points with their seeds.
#[pyclass(frozen, module = "plimsoll._native")]
pub(crate) struct Study {
    study: Arc<plimsoll_sim::Study>,
}

#[pymethods]
impl Study {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python names them at the only call")]
    fn new(
        py: Python<'_>,
        path: String,
        text: String,
        short: bool,
        systems: Vec<String>,
        settings: Settings,
        grid: Vec<Vec<Settings>>,
        seed: Option<u64>,
        seeds: u32,
        series: bool,
        threads: Option<NonZeroUsize>,
    ) -> PyResult<Self> {
        off_thread(py, move |_| {
            kind(&path, &text)?;
            let mut all = Vec::new();
            for own in combinations(&grid)? {
                let fixed: Settings = settings.iter().chain(&own).cloned().collect();
                for point in points(&path, &text, Form::new(true, short), &fixed)? {
                    let settings = own.iter().cloned().chain(point.settings).collect();
                    all.push(Point { settings, scenario: point.scenario });
                }
                if all.len() > MOST_POINTS {
                    let why =
                        format!("grid and `sweep` have more than {MOST_POINTS} points; vary fewer values");
                    return Err(Refusal::Argument(why));
                }
            }
            let options = Options { systems, seed, seeds, threads, trace: None, series };
            Ok(Self { study: Arc::new(plimsoll_sim::Study::new(all, options)?) })
        })
    }

    /// The settings of each point.
    #[getter]
    fn settings(&self) -> Vec<Settings> {
        self.study.points().iter().map(|point| point.settings.clone()).collect()
    }

    /// The first seed.
    #[getter]
    fn seed(&self) -> u64 {
        self.study.points().first().map_or(0, |point| point.scenario.seed)
    }

    /// Whether nothing is varied.
    #[getter]
    fn alone(&self) -> bool {
        self.study.is_alone()
    }

    /// The number of runs: points times seeds times systems.
    #[getter]
    fn runs(&self) -> usize {
        self.study.batch().len()
    }

    /// Carries out all runs in this process.
    fn run(&self, py: Python<'_>) -> PyResult<Outcomes> {
        let study = Arc::clone(&self.study);
        off_thread(py, move |stop| {
            let batch = study.batch().stopped_by(Arc::clone(stop));
            let all: Vec<usize> = (0..batch.len()).collect();
            let outcomes: Result<_, _> = batch.outcomes(batch.run(&all, &|_| {})).into_iter().collect();
            drop(batch);
            Ok(Outcomes::of(study, outcomes?))
        })
    }

    /// Carries out the runs with these numbers; returns what `collect` of an equal study takes for each, in another process.
    fn part<'py>(&self, py: Python<'py>, numbers: Vec<usize>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let study = Arc::clone(&self.study);
        let parts: Vec<Vec<u8>> = off_thread(py, move |stop| {
            let batch = study.batch().stopped_by(Arc::clone(stop));
            if let Some(number) = numbers.iter().find(|&&number| number >= batch.len()) {
                return Err(Refusal::Argument(format!("there is no run {number}")));
            }
            let pack = |finished: Result<Finished, _>| {
                postcard::to_stdvec(&finished?).map_err(|error| Refusal::Failed(error.to_string()))
            };
            batch.run(&numbers, &|_| {}).into_iter().map(pack).collect()
        })?;
        Ok(parts.iter().map(|part| PyBytes::new(py, part)).collect())
    }

    /// The outcomes, from the parts of all runs in the order of their numbers.
    fn collect(&self, py: Python<'_>, parts: Vec<Vec<u8>>) -> PyResult<Outcomes> {
        let study = Arc::clone(&self.study);
        off_thread(py, move |_| {
            let batch = study.batch();
            if parts.len() != batch.len() {
                let why = format!("{} parts are not all of {} runs", parts.len(), batch.len());
                return Err(Refusal::Failed(why));
            }
            let unpack = |part: &Vec<u8>| postcard::from_bytes::<Finished>(part);
            let finished: Result<Vec<Finished>, _> = parts.iter().map(unpack).collect();
            let finished = finished.map_err(|error| {
                Refusal::Failed(format!("a part is of another version of Plimsoll: {error}"))
            })?;
            let outcomes: Result<_, _> =
                batch.outcomes(finished.into_iter().map(Ok).collect()).into_iter().collect();
            drop(batch);
            Ok(Outcomes::of(study, outcomes?))
        })
    }
}
