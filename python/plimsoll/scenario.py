"""Scenarios: loaded, checked and run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from plimsoll import _native
from plimsoll.results import Result
from plimsoll.study import Plan, seed_range, settings_of

Overrides = Mapping[str, Any]


class Scenario:
    """A scenario file, read and without mistakes in its form for virtual time. `load` makes one.

    It holds the file's text and path, so it can be pickled; other files that it names are read when it runs.
    """

    def __init__(self, path: str, text: str | None = None) -> None:
        self.text, contents = _native.load(path, text)
        """The file's text."""
        self.path = path
        """The path, from whose folder other files are found."""
        self.name, self.about, self.systems, self.tenants, self.workloads = contents

    def __reduce__(self) -> tuple[Any, ...]:
        return (Scenario, (self.path, self.text))

    def __repr__(self) -> str:
        return f"<plimsoll.Scenario {self.name}: systems {', '.join(self.systems)}>"

    def check(self) -> None:
        """Checks it in all its forms, live, virtual and short, with the policies of its systems, as `plimsoll check` does.

        Raises:
            ScenarioError: with all mistakes, in the words of `plimsoll check`.
        """
        _native.check(self.path, self.text)

    def run(
        self,
        seeds: int | Iterable[int] | None = None,
        duration: str | float | None = None,
        overrides: Overrides | None = None,
        systems: Iterable[str] = (),
        short: bool = False,
        series: bool = False,
        threads: int | None = None,
    ) -> Result:
        """Runs it in virtual time, on all cores; other Python threads go on meanwhile. Ctrl-C ends it.

        Args:
            seeds: `5` takes five seeds, from the file's on (`--seeds 5`); `range(7, 9)` takes 7 and 8 (`--seed 7 --seeds 2`).
                Seeds are consecutive. Without, the file's.
            duration: the length of the run, a number of seconds or a text such as `"2s"`.
            overrides: values by path (`{"tenants.shop.min": "30Mbps"}`), as `--set`.
            systems: the systems to run; none stands for all.
            short: the short form, as `--short`.
            series: take traces of connections and links over time.
            threads: threads to run on; without, one for each core.

        Raises:
            ScenarioError: a wrong value, or no such system.
            RunError: the run failed.
            ValueError: the file has a sweep (`plimsoll.sweep` runs it), or seeds are not consecutive.
        """
        fixed = settings_of(overrides or {}, duration)
        plan = Plan(self.path, self.text, short, tuple(systems), fixed, (), seed_range(seeds), series)
        study = plan.study(threads)
        if not study.alone:
            raise ValueError(f"the scenario has a sweep of {len(study.settings)} points: use `plimsoll.sweep(scenario)`")
        return Result(self.name, study.run(), 0, {}, plan.seeds_of(study))


def load(path_or_text: str | os.PathLike[str]) -> Scenario:
    """Reads a scenario from a file, or from a text: a string with more than one line is a text.

    Files that a text names are found from the current folder.

    Raises:
        ScenarioError: the file cannot be read, or has mistakes; the message is that of `plimsoll sim`.
    """
    if isinstance(path_or_text, str) and "\n" in path_or_text:
        return Scenario("scenario.yaml", path_or_text)
    return Scenario(str(Path(path_or_text)))
