"""What a run needs, as plain data: it goes to other processes and machines."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll._native import Study

Settings = tuple[tuple[str, str], ...]
# For each axis its choices, and for each of these the paths that it sets.
Grid = tuple[tuple[Settings, ...], ...]

# The separator of paths that vary together, as in a file's `sweep`.
TOGETHER = " + "


@dataclass(frozen=True)
class Plan:
    """A scenario with settings, grid and seeds."""

    path: str
    text: str
    short: bool
    systems: tuple[str, ...]
    settings: Settings
    grid: Grid
    seeds: range | int | None
    series: bool
    token: str = ""
    """Tells this plan from an equal one before, since when files may have changed."""

    def study(self, threads: int | None = None) -> Study:
        """The native study. Reads the files that the scenario names."""
        first, count = (self.seeds.start, len(self.seeds)) if isinstance(self.seeds, range) else (None, self.seeds or 1)
        return Study(
            self.path,
            self.text,
            self.short,
            list(self.systems),
            list(self.settings),
            [[list(choice) for choice in axis] for axis in self.grid],
            first,
            count,
            self.series,
            threads,
        )

    def seeds_of(self, study: Study) -> range:
        """The seeds, also where the file states the first."""
        count = len(self.seeds) if isinstance(self.seeds, range) else self.seeds or 1
        return range(study.seed, study.seed + count)


def seed_range(seeds: int | Iterable[int] | None) -> range | int | None:
    """A number of seeds, or consecutive ones as a range.

    Raises:
        ValueError: there is no seed, or they are not consecutive whole numbers from 0.
    """
    if seeds is None:
        return None
    if not isinstance(seeds, Iterable):
        count = operator.index(seeds)
        if not 1 <= count < 1 << 32:
            raise ValueError(f"seeds are a number from 1, not {count}")
        return count
    listed = [operator.index(seed) for seed in seeds]
    if not listed or not 0 <= listed[0] < 1 << 63 or listed != list(range(listed[0], listed[0] + len(listed))):
        raise ValueError("seeds are consecutive whole numbers, such as `range(5)`; run others one by one")
    return range(listed[0], listed[0] + len(listed))


def value(given: Any) -> str:
    """A value as a scenario file has it."""
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, (numbers.Real, str)):  # numpy's numbers, too
        return str(given)
    raise TypeError(f"a value is a text, a number or a truth value, not {type(given).__name__}")


def settings_of(overrides: Mapping[str, Any], duration: str | float | None) -> Settings:
    """Values by path, as texts."""
    settings = tuple((path, value(given)) for path, given in overrides.items())
    if duration is None:
        return settings
    if isinstance(duration, str):
        return (*settings, ("duration", duration))
    return (*settings, ("duration", f"{round(duration * 1e9)}ns"))


def grid_of(grid: Mapping[str, Iterable[Any]]) -> Grid:
    """The choices of each axis: `{"a": [1, 2], "b + c": [(1, 2), (3, 4)]}`.

    Raises:
        ValueError: an axis has no value, or a choice of paths that vary together has too few or too many.
    """
    return tuple(_axis(key, choices) for key, choices in grid.items())


def _axis(key: str, choices: Iterable[Any]) -> tuple[Settings, ...]:
    paths = key.split(TOGETHER)
    if isinstance(choices, str):
        raise ValueError(f"the values of {key!r} are a list, not a text")
    axis = []
    for choice in choices:
        values = [choice] if len(paths) == 1 else list(choice)
        if len(values) != len(paths):
            raise ValueError(f"{key!r} varies {len(paths)} values together, and {choice!r} has {len(values)}")
        axis.append(tuple((path, value(one)) for path, one in zip(paths, values, strict=True)))
    if not axis:
        raise ValueError(f"{key!r} takes no value")
    return tuple(axis)
