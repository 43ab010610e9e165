"""Results of a scenario in virtual time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, overload

from plimsoll import frames, plots
from plimsoll._native import Outcomes, Study

Table = Literal["summary", "throughput", "latency", "samples", "flows", "series-flows", "series-links"]

TABLES: tuple[Table, ...] = (
    "summary",
    "throughput",
    "latency",
    "samples",
    "flows",
    "series-flows",
    "series-links",
)


class Result:
    """What a scenario gave, at one point: every system with every seed.

    Times are in seconds, rates in bits a second and sizes in bytes, and names of columns say so.
    """

    def __init__(self, name: str, outcomes: Outcomes, index: int, settings: dict[str, str], seeds: range) -> None:
        self._outcomes = outcomes
        self._index = index
        self.name = name
        """The scenario's name."""
        self.settings = settings
        """The values of the grid and of the file's `sweep` at this point, by path; empty where nothing is varied."""
        self.seeds = seeds
        """The seeds. A table's column `pair` counts them from 0."""

    @property
    def passed(self) -> bool:
        """Whether no expectation failed with any seed, and every delay bound held."""
        return self._outcomes.passed(self._index)

    @property
    def expectations(self) -> list[dict[str, Any]]:
        """Each expectation with its `status` (`passed`, `failed`, `skipped`), both sides and their unit."""
        found: list[dict[str, Any]] = self.to_dict()["expectations"]
        return found

    def json(self) -> str:
        """Everything, as the text that `plimsoll sim FILE --json` prints for a file without a sweep."""
        return self._outcomes.json_of(self._index)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as `json` has it: `systems` with their figures, `runs`, `expectations`, `promises`."""
        read: dict[str, Any] = json.loads(self.json())
        return read

    def text(self, width: int = 120) -> str:
        """The table that `plimsoll sim` prints, at most `width` characters wide where that can be done."""
        return self._outcomes.text_of(self._index, width)

    def columns(self, table: Table = "summary") -> frames.Columns:
        """A table as lists of strings and floats by column, all of one length; what was not measured is `None`.

        - `summary`: system, subject (a tenant, a workload, or empty), figure, value. Medians over seeds.
        - `throughput`: bits a second of each workload in each window (`measure.window`) of each run.
        - `latency`: the distribution of answers' latencies in seconds over all runs of a system; `part` is the part of
          answers that took at most that long.
        - `samples`: each answered request (`what` is `answer`) and each measured wait, of each run.
        - `flows`: each flow that arrived, of workloads of that kind, with its completion time and slowdown.
        - `series-flows`, `series-links`: traces over time; empty unless the run was made with `series=True`.

        Raises:
            ValueError: there is no such table.
        """
        return self._outcomes.columns_of(self._index, table)

    def frame(self, table: Table = "summary", library: frames.Library | None = None) -> Any:
        """A table as a polars or pandas frame; see `columns`.

        `library` is `"polars"` or `"pandas"`. Without it, the one that the program has imported is used, else one that is
        installed, polars first.

        Raises:
            ImportError: the library is not installed.
            ValueError: there is no such table or library.
        """
        return frames.frame(self.columns(table), library)

    def plot(self, kind: str = "throughput", axes: Any = None) -> Any:
        """A matplotlib figure: `throughput` or `latency`, and of traces `cwnd`, `rtt`, `rate`, `queues` or `links`.

        Plots over time show the first seed, with a panel for each system. `axes` are drawn on if given.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: there is no such plot, or it needs traces.
        """
        return plots.plot(self, kind, axes)

    def report(self, folder: str | Path) -> Path:
        """Writes the report of `plimsoll sim --out FOLDER`; returns the path of its page.

        Raises:
            RunError: the folder cannot be written.
        """
        return Path(self._outcomes.report_of(self._index, Path(folder)))

    def __repr__(self) -> str:
        verdict = "passed" if self.passed else "failed"
        at = "".join(f", {path}={value}" for path, value in self.settings.items())
        return f"<plimsoll.Result {self.name}{at}: {len(self.seeds)} seeds, {verdict}>"


class Sweep(Sequence[Result]):
    """The results of all points of a sweep, in the order of the grid; the last path varies fastest."""

    def __init__(self, name: str, study: Study, outcomes: Outcomes, seeds: range) -> None:
        self._outcomes = outcomes
        self.name = name
        """The scenario's name."""
        self._results = [
            Result(name, outcomes, index, dict(settings), seeds) for index, settings in enumerate(study.settings)
        ]

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...
    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        return self._results[index]

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    @property
    def passed(self) -> bool:
        """Whether every point passed."""
        return all(result.passed for result in self)

    def json(self) -> str:
        """Everything, as the text that `plimsoll sim FILE --json` prints."""
        return self._outcomes.json()

    def text(self, width: int = 120) -> str:
        """The table that `plimsoll sim` prints for a sweep."""
        return self._outcomes.text(width)

    def columns(self) -> frames.Columns:
        """The sweep's table: a line for each point and system, as `sweep.csv` of the report has it.

        Columns are the paths that are varied (strings), `system`, `expectations_met`, `expectations`, and the figures:
        `shop.throughput_bps`, `ask.p99_s`. Medians over seeds.
        """
        return self._outcomes.columns()

    def frame(self, library: frames.Library | None = None) -> Any:
        """The sweep's table as a polars or pandas frame; see `columns`, and `Result.frame` for `library`."""
        return frames.frame(self.columns(), library)

    def plot(self, figure: str, over: str | None = None, axes: Any = None) -> Any:
        """A matplotlib figure of one of the table's figures over a varied path, the first unless stated.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: there is no such figure or path.
        """
        return plots.plot_sweep(self, figure, over, axes)

    def __repr__(self) -> str:
        return f"<plimsoll.Sweep {self.name}: {len(self)} points, {'passed' if self.passed else 'failed'}>"
