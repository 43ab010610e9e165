//! The experiments: those in the binary, or those in a folder.
//!
//! Why: an installed binary contains all experiments; a folder is for experiments that a user changes.
//! From: `build.rs`, which collects `examples/papers/`.
//! Not here: running them.
//! Invariant: a file `-live.yaml` has a live form alone, for the experiment of the same number; experiments are sorted by paper, then by kind and number, then by file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_document::nearest;
use plimsoll_scenario::{Form, Paper, Point, Scenario};
use tempfile::TempDir;

use super::collect::collect;
use crate::failure::Failure;

/// The files of `examples/papers/`: path below it, and text.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/papers.rs"));

/// The modules that they name, as text, in the same way: rank programs, and tenants' programs.
const MODULES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// The papers by their letters, in the order in which they are shown.
pub(super) const SERIES: [(&str, &str); 5] = [
    ("LO", "Loom (NSDI 2019)"),
    ("SE", "SENIC (NSDI 2014)"),
    ("PN", "PicNIC (SIGCOMM 2019)"),
    ("MI", "MIMIC"),
    ("FN", "FairNIC (SIGCOMM 2020)"),
];

/// An experiment and its file.
#[derive(Debug)]
pub(super) struct Experiment {
    /// Path of the file.
    pub file: String,
    pub paper: Paper,
    /// All points of its sweep; one without a sweep.
    pub points: Vec<Point>,
    /// Holds the modules of experiments in the binary, for as long as they may run.
    _modules: Option<Arc<TempDir>>,
}

/// The experiments that were asked for, from a folder or from the binary.
pub(super) fn experiments(
    folder: Option<&Path>,
    form: Form,
    only: &[String],
) -> Result<Vec<Experiment>, Failure> {
    let mut all = match folder {
        Some(folder) => in_folder(folder, form)?,
        None => carried(form)?,
    };
    if let Some(word) = only.iter().find(|word| !all.iter().any(|one| one.paper.is_meant_by(word))) {
        return Err(unknown(word, &all));
    }
    all.retain(|one| only.is_empty() || only.iter().any(|word| one.paper.is_meant_by(word)));
    for Point { scenario, .. } in all.iter_mut().flat_map(|one| &mut one.points) {
        scenario.read_modules().map_err(|errors| Failure::Scenario(Box::new(errors)))?;
    }
    all.sort_by_cached_key(|one| place(&one.paper.id, &one.file));
    Ok(all)
}

fn carried(form: Form) -> Result<Vec<Experiment>, Failure> {
    // Policies name modules by path.
    let modules = tempfile::tempdir().map_err(|error| Failure::io("a temporary directory", &error))?;
    write(MODULES, modules.path())?;
    let modules = Arc::new(modules);
    let read = |(name, text): &(&str, &str)| {
        let folder = modules.path().join(name);
        let folder = folder.parent().unwrap_or(modules.path());
        let found = experiment(name, Scenario::points(text, name, folder, form, &[])).transpose()?;
        Some(found.map(|one| Experiment { _modules: Some(modules.clone()), ..one }))
    };
    FILES.iter().filter(|(name, _)| has(name, form)).filter_map(read).collect()
}

fn in_folder(folder: &Path, form: Form) -> Result<Vec<Experiment>, Failure> {
    let mut files = Vec::new();
    let wrong = |error: io::Error| {
        Failure::Wrong(format!("{}: {error}; give a folder with scenario files", folder.display()))
    };
    collect(folder, "yaml", &mut files).map_err(wrong)?;
    files.retain(|file| has(&file.to_string_lossy(), form));
    files.sort();
    let read = |file: &PathBuf| {
        experiment(&file.to_string_lossy(), Scenario::load_points(file, form, &[])).transpose()
    };
    let found: Vec<Experiment> = files.iter().filter_map(read).collect::<Result<_, _>>()?;
    if found.is_empty() {
        let why = format!("{}: the folder has no scenario file with a `paper:` block", folder.display());
        return Err(Failure::Wrong(why));
    }
    Ok(found)
}

/// Whether a file has this form.
fn has(file: &str, form: Form) -> bool {
    !form.is_virtual() || !file.ends_with("-live.yaml")
}

/// The experiment of a file; none, with a note, when the file has no `paper:` block.
fn experiment(
    file: &str,
    points: Result<Vec<Point>, plimsoll_scenario::Errors>,
) -> Result<Option<Experiment>, Failure> {
    let points = points.map_err(|errors| Failure::Scenario(Box::new(errors)))?;
    let Some(paper) = points[0].scenario.paper.clone() else {
        eprintln!("note: {file} has no `paper:` block and is left out");
        return Ok(None);
    };
    Ok(Some(Experiment { file: file.to_owned(), paper, points, _modules: None }))
}

fn unknown(word: &str, all: &[Experiment]) -> Failure {
    let mut ids: Vec<&str> = all.iter().flat_map(|one| [one.paper.series(), one.paper.id.as_str()]).collect();
    ids.sort_by_cached_key(|id| place(id, ""));
    ids.dedup();
    let near = nearest(word, ids.iter().copied()).map(|near| format!("did you mean `{near}`? "));
    let (near, ids) = (near.unwrap_or_default(), ids.join("`, `"));
    Failure::Wrong(format!("there is no experiment `{word}`; {near}there are `{ids}`"))
}

/// The sort key of an experiment in the table, and of its id in a message: the paper, then experiments, mechanisms, costs and security, then the
/// number.
pub(super) fn place(id: &str, file: &str) -> (usize, String, usize, u32, String) {
    let (series, rest) = id.split_once('-').unwrap_or((id, ""));
    let paper = SERIES.iter().position(|(letters, _)| *letters == series).unwrap_or(SERIES.len());
    let number = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
    let kind = ["E", "M", "C", "S"].iter().position(|kind| rest.starts_with(kind)).unwrap_or(4);
    let file = file.trim_end_matches(".yaml").to_owned();
    (paper, series.to_owned(), kind, number.parse().unwrap_or(0), file)
}

/// Writes the files in the binary into a folder, with the modules that they name.
pub(super) fn unpack(folder: &Path) -> Result<(), Failure> {
    write(FILES, folder)?;
    write(MODULES, folder)
}

fn write(files: &[(&str, &str)], folder: &Path) -> Result<(), Failure> {
    for (name, text) in files {
        let file = folder.join(name);
        let written = std::fs::create_dir_all(file.parent().unwrap_or(folder));
        let written = written.and_then(|()| std::fs::write(&file, text));
        written.map_err(|error| Failure::io(file.display(), &error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file without a `paper:` block would never be run, and this would go unnoticed.
    #[test]
    fn every_file_that_is_carried_is_an_experiment_of_a_known_paper() {
        let of = |form| experiments(None, form, &[]).unwrap_or_else(|failure| panic!("{failure:?}"));
        let all = of(Form::Full);
        assert_eq!(all.len(), FILES.len());
        let live = all.iter().filter(|one| one.file.ends_with("-live.yaml")).count();
        assert_eq!(of(Form::Virtual).len(), FILES.len() - live);
        for one in of(Form::Virtual).iter().chain(&all) {
            assert!(SERIES.iter().any(|(letters, _)| *letters == one.paper.series()), "{}", one.file);
            assert!(one.points.iter().all(|point| !point.scenario.expect.is_empty()), "{}", one.file);
        }
    }

    #[test]
    fn a_word_means_a_paper_or_one_experiment() {
        let only = |word: &str| experiments(None, Form::Virtual, &[word.to_owned()]);
        let ids =
            |word| only(word).unwrap_or_default().into_iter().map(|one| one.paper.id).collect::<Vec<_>>();
        assert!(ids("LO").len() >= 9 && ids("LO").iter().all(|id| id.starts_with("LO-")));
        assert!(ids("lo-e4").iter().all(|id| id == "LO-E4"));
        let Err(Failure::Wrong(why)) = only("LOE4") else { panic!("there is no such experiment") };
        assert!(why.contains("did you mean `LO-E4`?"), "{why}");
    }
}
