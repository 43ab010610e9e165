"""Frames and plots: of what is installed, and with nothing installed."""

from __future__ import annotations

import subprocess
import sys

import pandas
import polars
import pytest

import plimsoll


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    from conftest import TWO

    path = tmp_path_factory.mktemp("scenario") / "two.yaml"
    path.write_text(TWO)
    return plimsoll.load(path).run(seeds=2, series=True)


@pytest.mark.parametrize("table", plimsoll.TABLES)
def test_both_libraries_have_the_same_cells(result, table):
    a, b = result.frame(table, "polars"), result.frame(table, "pandas")
    assert isinstance(a, polars.DataFrame) and isinstance(b, pandas.DataFrame)
    assert a.columns == list(b.columns) and len(a) == len(b)
    assert a.to_dict(as_series=False) == result.columns(table)


def test_figures_of_the_summary_are_those_of_the_json(result):
    frame = result.frame("summary", "polars")
    line = frame.filter(system="plimsoll", subject="gold", figure="throughput_bps")
    system = next(one for one in result.to_dict()["systems"] if one["system"] == "plimsoll")
    gold = next(one for one in system["tenants"] if one["tenant"] == "gold")
    assert line["value"].to_list() == [gold["throughput_bps"]]


def test_samples_are_the_answers(result):
    samples = result.frame("samples", "pandas")
    runs = result.to_dict()["runs"]
    assert len(samples) == sum(run["workloads"]["ask"]["answers"] for run in runs) > 100
    assert (samples["seconds"] > 0).all() and set(samples["what"]) == {"answer"}


def test_an_unknown_table_or_library_is_refused(result):
    with pytest.raises(ValueError, match="no table `flow`"):
        result.frame("flow")
    with pytest.raises(ValueError, match="not by 'arrow'"):
        result.frame("summary", "arrow")


@pytest.mark.parametrize("kind", ["throughput", "latency", "cwnd", "rtt", "rate", "queues", "links"])
def test_each_plot_draws_lines(result, kind):
    figure = result.plot(kind)
    assert all(axis.lines and axis.get_ylabel() for axis in figure.axes)


def test_a_plot_says_what_it_lacks(two):
    result = plimsoll.load(two).run()
    with pytest.raises(ValueError, match="series=True"):
        result.plot("cwnd")
    with pytest.raises(ValueError, match="there are throughput, latency"):
        result.plot("pie")


def test_a_sweep_is_one_frame_and_one_plot(two):
    swept = plimsoll.sweep(two, {"tenants.gold.weight": [1, 3], "rate": ["500Mbps", "1Gbps"]}, on="threads")
    frame = swept.frame("polars")
    assert frame.shape[0] == 8 and frame["tenants.gold.weight"].to_list() == ["1"] * 4 + ["3"] * 4
    figure = swept.plot("gold.throughput_bps", over="rate")
    assert len(figure.axes[0].lines) == 4
    with pytest.raises(ValueError, match="not varied; varied are"):
        swept.plot("gold.throughput_bps", over="seed")
    with pytest.raises(ValueError, match="there is no figure 'gold'"):
        swept.plot("gold")


def test_a_report_is_written(result, tmp_path):
    page = result.report(tmp_path / "report")
    assert page.name == "report.html" and page.stat().st_size > 10_000


WITHOUT = """
import sys
sys.modules.update({name: None for name in ("polars", "pandas", "matplotlib", "ray", "numpy")})
import plimsoll
result = plimsoll.load(sys.argv[1]).run()
assert result.columns()["system"][0] == "fifo"
for make in (result.frame, result.plot):
    try:
        make()
    except ImportError as error:
        print(error)
"""


def test_the_package_needs_no_other_to_be_imported(two):
    ran = subprocess.run([sys.executable, "-c", WITHOUT, str(two)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "frames need polars or pandas: run `pip install polars`, or use `.columns()`",
        "plots need matplotlib: run `pip install matplotlib`",
    ]
