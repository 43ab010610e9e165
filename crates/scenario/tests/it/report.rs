//! Reports: the page stands alone, the pictures open, and the numbers agree.

use std::path::Path;

use crate::support;
use plimsoll_scenario::{FlowSample, Form, Results, Scenario, Status, json, judge, report, summarise, table};
use plimsoll_units::{Nanos, Span};

fn demo() -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/noisy-neighbour.yaml");
    Scenario::load(&path, Form::Full).unwrap_or_else(|errors| panic!("{}", errors.render(false)))
}

#[test]
fn the_page_stands_alone_and_the_pictures_open() {
    let scenario = demo();
    let results = support::invented(&scenario);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let verdicts = judge(&scenario, &results);
    let written = report(&scenario, &results, &verdicts, folder.path()).expect("written");

    let page = std::fs::read_to_string(&written.html).expect("the page");
    for outside in ["http:", "https:", "src=", "href=", "@import", "url(", "<script"] {
        assert!(!page.contains(outside), "the page refers to something outside: {outside}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("<figure>").count());
    assert!(page.contains("checkout") && page.contains("batch3 queue_full 1234"));

    let pictures = written.files.iter().filter(|path| path.extension().is_some_and(|e| e == "png"));
    let mut count = 0;
    for picture in pictures {
        let bytes = std::fs::read(picture).expect("a picture");
        assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n", "{}", picture.display());
        let size = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        assert!(size(16) >= 960 && size(20) >= 300, "{} is too small", picture.display());
        assert_eq!(&bytes[bytes.len() - 8..bytes.len() - 4], b"IEND", "{} is cut off", picture.display());
        count += 1;
    }
    assert_eq!(count, 4);
    if let Ok(keep) = std::env::var("KEEP_REPORT") {
        report(&scenario, &results, &verdicts, Path::new(&keep)).expect("kept");
    }
}

#[test]
fn the_table_has_a_row_for_each_system_and_fits() {
    let scenario = demo();
    let results = support::invented(&scenario);
    let summaries = summarise(&scenario, &results);
    let text = table(&scenario, &results, &summaries, &judge(&scenario, &results), 120, false);
    println!("{text}");
    for system in ["fifo", "htb", "plimsoll"] {
        assert!(
            text.lines().any(|line| line.contains(&format!("│ {system} "))),
            "{system} is missing:\n{text}"
        );
    }
    assert!(text.contains("batch3 queue_full") && text.contains("to vault"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    assert!(!text.contains('\u{1b}'), "colour where none was asked for");
}

#[test]
fn many_tenants_have_three_columns() {
    let tenants: String = (0..2_000).map(|n| format!("  tenant{n}: {{}}\n")).collect();
    let text = format!(
        "name: many\nrate: 1Gbps\nduration: 1s\nsystems: [fifo]\ntenants:\n{tenants}\
         workloads: {{w: {{tenant: tenant7, kind: bulk}}}}\n"
    );
    let parsed = Scenario::parse(&text, "many.yaml", Path::new(""), Form::Full);
    let scenario = parsed.unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    let results = support::invented(&scenario);
    let summaries = summarise(&scenario, &results);
    let text = table(&scenario, &results, &summaries, &[], 100, false);
    assert!(text.contains("least of 2000") && text.contains("median") && text.contains("most"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let written = report(&scenario, &results, &[], folder.path()).expect("written");
    let page = std::fs::read_to_string(written.html).expect("the page");
    assert!(page.contains("least of 2000") && page.contains("Drawn: 16 of 2000"));
    assert!(page.len() < 500_000, "{} bytes", page.len());
}

#[test]
fn the_part_that_was_not_answered_has_a_column_where_there_is_one() {
    let scenario = demo();
    let mut results = support::invented(&scenario);
    let shown = |results: &_| table(&scenario, results, &summarise(&scenario, results), &[], 160, false);
    assert!(!shown(&results).contains("unanswered"));
    let fifo = results.runs.iter_mut().filter(|run| run.system == "fifo");
    for asked in fifo.filter_map(|run| run.workloads.get_mut("checkout")) {
        let within = scenario.measure.from..scenario.measure.to;
        asked.samples.retain(|sample| within.contains(&(sample.at.since(Nanos::ZERO))));
        asked.unanswered = asked.samples.iter().map(|sample| sample.at).collect();
    }
    let text = shown(&results);
    let row = text.lines().find(|line| line.contains("│ fifo ")).expect("a row");
    assert!(text.contains("unanswered") && row.contains("50.0"), "{text}");
    // Where none was answered there is no percentile, and the table says what an expectation would.
    let fifo = results.runs.iter_mut().filter(|run| run.system == "fifo");
    fifo.filter_map(|run| run.workloads.get_mut("checkout")).for_each(|asked| asked.samples.clear());
    let text = shown(&results);
    let row = text.lines().find(|line| line.contains("│ fifo ")).expect("a row");
    assert_eq!(row.matches("never").count(), 3, "{text}");
}

#[test]
fn a_system_that_did_not_run_leaves_dashes_and_skips() {
    let scenario = demo();
    let mut results = support::invented(&scenario);
    results.runs.retain(|run| run.system != "fifo");
    results.notes.push("fifo: no permission to make queueing disciplines here".to_owned());
    let verdicts = judge(&scenario, &results);
    let skipped = verdicts.iter().filter(|verdict| verdict.status == Status::Skipped).count();
    assert_eq!(skipped, scenario.expect.iter().filter(|line| line.systems().contains(&"fifo")).count());
    let text = table(&scenario, &results, &summarise(&scenario, &results), &verdicts, 120, false);
    assert!(text.contains("note: fifo: no permission"), "{text}");
    let machine = json(&scenario, &results, &verdicts);
    assert_eq!(machine["systems"][0]["runs"], 0);
    assert!(machine["systems"][0]["throughput_bps"].is_null());
}

#[test]
fn nothing_measured_is_shown_and_not_a_panic() {
    let scenario = demo();
    let results = Results::default();
    let verdicts = judge(&scenario, &results);
    assert!(verdicts.iter().all(|verdict| verdict.status == Status::Skipped));
    let folder = tempfile::tempdir().expect("a temporary folder");
    report(&scenario, &results, &verdicts, folder.path()).expect("written");
    assert!(
        table(&scenario, &results, &summarise(&scenario, &results), &verdicts, 80, true).contains("skip")
    );
}

/// A scenario of flows that arrive, with three runs; the flow of 20 kB in each takes longer by a millisecond, and one of 2 MB
/// never ends.
fn flows() -> (Scenario, Results) {
    let text = "name: f\nrate: 1Gbps\nduration: 1s\npairs: 3\nsystems: [fifo]\ntenants: {a: {}}\n\
                workloads: {web: {tenant: a, kind: flows, sizes: 20kB, rate: 5}}\n\
                expect:\n  - fifo.web.fct_p99_upto_100kB ~ 5ms +- 0\n  - fifo.web.unfinished_above_1MB ~ 1 +- 0\n\
                \x20 - fifo.web.slowdown_mean ~ 5 +- 0\n  - fifo.web.offered ~ 16.16Mbps +- 0\n";
    let scenario = Scenario::parse(text, "f.yaml", Path::new(""), Form::Virtual);
    let scenario = scenario.unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    let mut results = support::invented(&scenario);
    for (run, ms) in results.runs.iter_mut().zip([4, 5, 6]) {
        let flow = |size, took| FlowSample { at: Nanos::new(7), size, took, ideal: Span::millis(1) };
        let found = run.workloads.get_mut("web").expect("the workload");
        found.flows = vec![flow(20_000, Some(Span::millis(ms))), flow(2_000_000, None)];
    }
    (scenario, results)
}

#[test]
fn flows_have_their_times_by_size_and_means_their_intervals() {
    let (scenario, results) = flows();
    let verdicts = judge(&scenario, &results);
    assert!(verdicts.iter().all(|verdict| verdict.status == Status::Passed), "{verdicts:?}");
    let text = table(&scenario, &results, &summarise(&scenario, &results), &verdicts, 120, false);
    let row = |start: &[&str]| {
        let words = |line: &str| {
            line.split('┆').map(|word| word.replace('│', "").trim().to_owned()).collect::<Vec<_>>()
        };
        let mut rows = text.lines().map(words);
        rows.find(|words| words.len() >= start.len() && words[..start.len()] == *start)
            .unwrap_or_else(|| panic!("{start:?} is missing:\n{text}"))
    };
    let short = row(&["fifo", "web", "≤ 100 kB"]);
    assert_eq!(short[3..], ["1", "0", "0.160", "5.00", "5.00", "5.00", "5.00", "5.00", "5.00"]);
    assert_eq!(row(&["fifo", "web", "≤ 10 MB"])[3..7], ["1", "1", "16.0", "-"], "counted, with no time");
    assert_eq!(row(&["fifo", "web", "all"])[3..5], ["2", "1"]);
    // The deviation is 1 ms, its error 1 / sqrt(3), and t of two degrees of freedom 4.303.
    assert_eq!(row(&["fifo", "web", "slowdown p99 all"])[3..], ["5.00", "± 2.48"]);
    assert!(text.contains("3 runs are few: intervals are 4.30 standard errors wide"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");

    let machine = json(&scenario, &results, &verdicts);
    let system = &machine["systems"][0];
    let all = system["flows"].as_array().expect("flows").last().expect("all");
    assert_eq!((all["sizes"].as_str(), all["unfinished"].as_f64()), (Some("all"), Some(1.0)));
    let intervals = system["intervals"].as_array().expect("intervals");
    let one = intervals.iter().find(|one| one["figure"] == "slowdown_p99").expect("the slowdown of all");
    assert_eq!((one["runs"].as_u64(), one["mean"].as_f64()), (Some(3), Some(5.0)));
    assert!((one["half_width"].as_f64().expect("a number") - 2.484).abs() < 1e-3);
    assert_eq!(machine["runs"][0]["workloads"]["web"]["unfinished_flows"], 1);

    let folder = tempfile::tempdir().expect("a temporary folder");
    let written = report(&scenario, &results, &verdicts, folder.path()).expect("written");
    let page = std::fs::read_to_string(&written.html).expect("the page");
    assert!(page.contains("≤ 100 kB") && page.contains("± 2.48<"));
    assert!(folder.path().join("slowdown.png").exists());
    let summary = std::fs::read_to_string(folder.path().join("summary.csv")).expect("the summary");
    assert!(summary.contains("fifo,web,fct_p99_seconds_above_10kB_upto_100kB_mean,"), "{summary}");
    assert!(summary.contains("fifo,web,unfinished,1"), "{summary}");
}

#[test]
fn one_run_has_no_interval() {
    let (scenario, mut results) = flows();
    results.runs.truncate(1);
    let summaries = summarise(&scenario, &results);
    assert!(summaries[0].intervals.is_empty());
    let text = table(&scenario, &results, &summaries, &[], 120, false);
    assert!(!text.contains("95 %"), "{text}");
}
