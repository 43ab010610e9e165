"""A wrong scenario is an exception with the command line's message; nothing that a scenario says ends the interpreter."""

from __future__ import annotations

import pickle
import random

import pytest

import plimsoll
from conftest import EXAMPLES, ROOT, TWO


def test_mistakes_have_the_message_of_the_command_line(plimsoll_command, two):
    two.write_text(TWO.replace("kind: bulk", "kind: bulg").replace("weight: 3", "weight: many"))
    ran = plimsoll_command("sim", str(two))
    with pytest.raises(plimsoll.ScenarioError) as caught:
        plimsoll.load(two)
    assert ran.returncode == 2
    assert str(caught.value) == ran.stderr.rstrip()
    assert len(caught.value.problems) == 2
    assert caught.value.problems[0]["message"]


def test_check_finds_what_another_form_has(plimsoll_command, two):
    two.write_text(TWO + "short: {systems: [qpf]}\n")
    ran = plimsoll_command("check", str(two))
    with pytest.raises(plimsoll.ScenarioError) as caught:
        plimsoll.load(two).check()
    assert (ran.returncode, str(caught.value)) == (2, ran.stderr.rstrip())


def test_check_finds_a_policy_that_breaks_a_rule(plimsoll_command, two):
    two.write_text(TWO.replace("weight: 3", "min: 2Gbps"))
    ran = plimsoll_command("check", str(two))
    with pytest.raises(plimsoll.ScenarioError) as caught:
        plimsoll.load(two).check()
    assert (ran.returncode, str(caught.value)) == (2, ran.stderr.rstrip())
    plimsoll.load(EXAMPLES / "noisy-neighbour.yaml").check()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"overrides": {"tenants.silver.weight": 1}}, ("--set", "tenants.silver.weight=1")),
        ({"overrides": {"rate": "fast"}}, ("--set", "rate=fast")),
        ({"systems": ["qpf"]}, ("--system", "qpf")),
    ],
)
def test_a_wrong_argument_has_the_message_of_the_command_line(plimsoll_command, two, arguments, words):
    ran = plimsoll_command("sim", str(two), *words)
    with pytest.raises(plimsoll.ScenarioError) as caught:
        plimsoll.load(two).run(**arguments)
    assert ran.returncode == 2
    assert str(caught.value) == ran.stderr.rstrip().removeprefix("error: ")


@pytest.mark.parametrize("file", ["examples/plimsoll.yaml", "examples/no-such-file.yaml", "examples"])
def test_another_file_has_the_message_of_the_command_line(plimsoll_command, monkeypatch, file):
    monkeypatch.chdir(ROOT)
    ran = plimsoll_command("sim", file)
    with pytest.raises(plimsoll.ScenarioError) as caught:
        plimsoll.load(file)
    assert str(caught.value) == ran.stderr.rstrip().removeprefix("error: ")


HOSTILE = [
    "\n",
    "[\n" * 100_000,
    "{a: " * 50_000 + "\n",
    "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n",
    TWO.replace("200ms", "1e400s"),
    TWO.replace("1Gbps", "18446744073709551615bps"),
    TWO + "sweep: {rate: [" + ", ".join(["1Gbps"] * 20_000) + "]}\n",
    TWO + "repeat: {a: 99999999}\n",
    TWO.replace("flows: 2", "flows: 4294967295"),
    "name: \x00\nrate: 1Gbps\n",
    "\ufeff" + "é" * 70_000 + "\n",
    TWO + "#" * 2_000_000 + "\n",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_text_is_an_exception(text):
    with pytest.raises(plimsoll.PlimsollError):
        plimsoll.load(text).run(duration="100ms")


def test_a_text_with_any_mistakes_is_read_or_refused():
    chance = random.Random(7)
    for _ in range(400):
        letters = list(TWO)
        for _ in range(chance.randrange(1, 6)):
            letters[chance.randrange(len(letters))] = chance.choice("{}[]:,&*!|>\n\t \"'0a-")
        try:
            plimsoll.load("".join(letters)).check()
        except plimsoll.ScenarioError as error:
            assert str(error)


def test_a_sweep_needs_sweep(two):
    two.write_text(TWO + "sweep: {rate: [1Gbps, 2Gbps]}\n")
    with pytest.raises(ValueError, match="sweep of 2 points: use `plimsoll.sweep"):
        plimsoll.load(two).run()


@pytest.mark.parametrize("seeds", [0, -1, [1, 3], [], [2, 1], range(0, 4, 2)])
def test_seeds_are_consecutive(two, seeds):
    with pytest.raises(ValueError, match="seeds are"):
        plimsoll.load(two).run(seeds=seeds)


@pytest.mark.parametrize(
    ("grid", "error"),
    [
        ({"rate": []}, ValueError),
        ({"rate": "1Gbps"}, ValueError),
        ({"rate + duration": [("1Gbps",)]}, ValueError),
        ({"rate": [["1Gbps"]]}, TypeError),
        ({"rote": ["1Gbps"]}, plimsoll.ScenarioError),
        ({"seed": range(20_000)}, plimsoll.ScenarioError),
    ],
)
def test_a_wrong_grid_is_refused(two, grid, error):
    with pytest.raises(error):
        plimsoll.sweep(two, grid=grid)


@pytest.mark.parametrize("on", ["processes", "ray"])
def test_a_failure_in_a_worker_is_the_same_exception(two, on, ray_of_two, monkeypatch):
    import plimsoll.sweeps

    # Ray's workers cannot import this file, and get what is defined in a function; other processes are the reverse.
    def fails(plan, numbers):
        raise plimsoll.ScenarioError("no such thing", '[{"message": "no such thing"}]')

    monkeypatch.setattr(plimsoll.sweeps, "_run_part", fails if on == "ray" else _fails)
    with pytest.raises(plimsoll.ScenarioError, match="no such thing") as caught:
        plimsoll.sweep(two, on=on, workers=2)
    assert caught.value.problems == [{"message": "no such thing"}]


def _fails(plan, numbers):
    raise plimsoll.ScenarioError("no such thing", '[{"message": "no such thing"}]')


def test_what_travels_can_be_pickled(two):
    scenario = plimsoll.load(two)
    again = pickle.loads(pickle.dumps(scenario))
    assert (again.name, again.text, again.path) == ("two", scenario.text, scenario.path)
    error = pickle.loads(pickle.dumps(plimsoll.ScenarioError("no", "[]")))
    assert (str(error), error.problems) == ("no", [])


def test_parts_of_another_version_are_refused(two):
    from plimsoll.study import Plan

    study = Plan(str(two), two.read_text(), False, (), (), (), None, False).study()
    with pytest.raises(plimsoll.RunError, match="another version"):
        study.collect([b"\xff" * 40] * study.runs)
    with pytest.raises(plimsoll.RunError, match="0 parts are not all of 2 runs"):
        study.collect([])
    with pytest.raises(plimsoll.ScenarioError, match="there is no run 9"):
        study.part([9])
