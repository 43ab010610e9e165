"""One file gives one result: Python's JSON is that of the command line, byte for byte, wherever runs are carried out."""

from __future__ import annotations

import json

import numpy
import pytest

import plimsoll
from conftest import EXAMPLES

ALONE = [
    (EXAMPLES / "noisy-neighbour.yaml", {"short": True}, ("--short",)),
    (EXAMPLES / "web-search.yaml", {"short": True, "seeds": 2}, ("--short", "--seeds", "2")),
    (EXAMPLES / "receive-flood.yaml", {"short": True, "seeds": [9]}, ("--short", "--seed", "9")),
    (EXAMPLES / "heavy-hitter.yaml", {"short": True, "systems": ["plimsoll"]}, ("--short", "--system", "plimsoll")),
]


@pytest.mark.parametrize(("file", "arguments", "words"), ALONE, ids=lambda one: getattr(one, "stem", None))
def test_an_example_gives_the_json_of_the_command_line(plimsoll_command, file, arguments, words):
    scenario = plimsoll.load(file)
    if "systems" in arguments and arguments["systems"][0] not in scenario.systems:
        name = scenario.systems[-1]
        arguments, words = {**arguments, "systems": [name]}, (*words[:-1], name)
    ran = plimsoll_command("sim", str(file), "--json", *words)
    assert scenario.run(**arguments).json() == ran.stdout.rstrip("\n"), ran.stderr


def test_seeds_duration_and_overrides_are_those_of_the_command_line(plimsoll_command, two):
    words = ("--seed", "7", "--seeds", "3", "--set", "tenants.gold.weight=1", "--set", "duration=300ms")
    ran = plimsoll_command("sim", str(two), "--json", *words)
    result = plimsoll.load(two).run(seeds=range(7, 10), duration=0.3, overrides={"tenants.gold.weight": 1})
    assert result.json() == ran.stdout.rstrip("\n")
    assert result.seeds == range(7, 10)
    assert result.to_dict()["duration_seconds"] == 0.3


SWEPT = """
sweep:
  tenants.gold.weight: [1, 3]
  workloads.bulk.flows + rate: [[1, 500Mbps], [4, 1Gbps]]
"""


@pytest.fixture
def swept(two):
    two.write_text(two.read_text() + SWEPT)
    return two


@pytest.mark.parametrize("on", [None, "threads", "processes"])
def test_a_file_with_a_sweep_gives_the_list_of_the_command_line(plimsoll_command, swept, on):
    ran = plimsoll_command("sim", str(swept), "--json", "--seeds", "2")
    swept = plimsoll.sweep(swept, seeds=2, on=on, workers=None if on is None else 2)
    assert swept.json() == ran.stdout.rstrip("\n")
    assert [point.settings["workloads.bulk.flows"] for point in swept] == ["1", "4", "1", "4"]


def test_ray_gives_the_list_of_the_command_line(plimsoll_command, swept, ray_of_two):
    ran = plimsoll_command("sim", str(swept), "--json", "--seeds", "2")
    assert plimsoll.sweep(swept, seeds=2, on="ray").json() == ran.stdout.rstrip("\n")


def test_each_point_of_a_grid_is_a_run_with_its_settings(plimsoll_command, two):
    grid = {"tenants.gold.weight": [1, 2], "rate + workloads.bulk.flows": [("500Mbps", 1), ("1Gbps", 3)]}
    swept = plimsoll.sweep(two, grid=grid, seeds=range(4, 6), on="processes", workers=2)
    assert len(swept) == 4
    for point in swept:
        settings = [word for pair in point.settings.items() for word in ("--set", "=".join(pair))]
        ran = plimsoll_command("sim", str(two), "--json", "--seed", "4", "--seeds", "2", *settings)
        assert point.json() == ran.stdout.rstrip("\n"), ran.stderr


def test_a_grid_is_the_same_on_ray_with_traces(two, ray_of_two):
    grid = {"tenants.gold.weight": numpy.array([1, 2, 4])}
    here, there = (plimsoll.sweep(two, grid=grid, seeds=2, on=on, series=True) for on in ("threads", "ray"))
    assert here.json() == there.json()
    for table in plimsoll.TABLES:
        for a, b in zip(here, there, strict=True):
            assert a.columns(table) == b.columns(table), table
    assert here[0].columns("series-flows")["cwnd_bytes"]


def test_traces_are_those_of_the_command_line(plimsoll_command, two, tmp_path):
    ran = plimsoll_command("sim", str(two), "--json", "--series", str(tmp_path / "traces"))
    assert json.loads(ran.stdout)["scenario"] == "two", ran.stderr
    lines = (tmp_path / "traces/series-links.csv").read_text().splitlines()
    links = plimsoll.load(two).run(series=True).columns("series-links")
    assert len(lines) - 1 == len(links["queue_bytes"])
    last = lines[-1].split(",")
    assert float(last[4]) == links["queue_bytes"][-1]
    assert lines[0].split(",") == list(links)


def test_a_text_is_read_as_its_file(two):
    assert plimsoll.load(two.read_text()).run().json() == plimsoll.load(two).run().json()


def test_the_tables_are_those_of_the_command_line(plimsoll_command, two, swept):
    ran = plimsoll_command("sim", str(swept))
    assert plimsoll.sweep(swept).text() in ran.stdout
