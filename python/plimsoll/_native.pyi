"""The native part of the package. Its classes are used through `Scenario`, `Result` and `Sweep`."""

from pathlib import Path
from typing import final

__all__ = ["Outcomes", "Study", "check", "load"]

_Settings = list[tuple[str, str]]

def load(path: str, text: str | None = None) -> tuple[str, tuple[str, str, list[str], list[str], list[str]]]:
    """Reads a scenario: its text, and its name, text about itself, systems, tenants and workloads."""

def check(path: str, text: str) -> None:
    """Checks a scenario in all its forms, with the policies of its systems."""

@final
class Study:
    """What is run: a scenario's points with their seeds."""

    def __new__(
        cls,
        path: str,
        text: str,
        short: bool,
        systems: list[str],
        settings: _Settings,
        grid: list[list[_Settings]],
        seed: int | None,
        seeds: int,
        series: bool,
        threads: int | None,
    ) -> Study: ...
    @property
    def settings(self) -> list[_Settings]:
        """The settings of each point."""

    @property
    def seed(self) -> int:
        """The first seed."""

    @property
    def alone(self) -> bool:
        """Whether nothing is varied."""

    @property
    def runs(self) -> int:
        """The number of runs: points times seeds times systems."""

    def run(self) -> Outcomes:
        """Carries out all runs in this process."""

    def part(self, numbers: list[int]) -> list[bytes]:
        """Carries out some runs, for `collect` of an equal study."""

    def collect(self, parts: list[bytes]) -> Outcomes:
        """The outcomes, from the parts of all runs in the order of their numbers."""

@final
class Outcomes:
    """The outcome of every point of a study."""

    def __len__(self) -> int: ...
    def passed(self, index: int) -> bool:
        """Whether no expectation failed at a point."""

    def json(self) -> str:
        """Everything of all points, as `plimsoll sim --json` prints it."""

    def json_of(self, index: int) -> str:
        """Everything of one point."""

    def text(self, width: int) -> str:
        """The table of all points."""

    def text_of(self, index: int, width: int) -> str:
        """A point's table."""

    def columns(self) -> dict[str, list[str | float | None]]:
        """The sweep's table."""

    def columns_of(self, index: int, table: str) -> dict[str, list[str | float | None]]:
        """A point's table of this name."""

    def report_of(self, index: int, folder: str | Path) -> Path:
        """Writes a point's report; returns the page's path."""
