"""Data frames of tables, by polars or pandas. Neither is needed before a frame is made."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any, Literal

Columns = dict[str, list[Any]]
Library = Literal["polars", "pandas"]

LIBRARIES: tuple[Library, ...] = ("polars", "pandas")


def library(asked: Library | None = None) -> Library:
    """The library that makes frames: the one asked for, else the one that the program has imported, else one that is installed.

    polars comes before pandas where both do.

    Raises:
        ValueError: another library is asked for.
        ImportError: none is installed.
    """
    if asked is not None:
        if asked not in LIBRARIES:
            raise ValueError(f"frames are made by {' or '.join(LIBRARIES)}, not by {asked!r}")
        return asked
    for name in LIBRARIES:
        if sys.modules.get(name) is not None:
            return name
    for name in LIBRARIES:
        if name not in sys.modules and importlib.util.find_spec(name) is not None:
            return name
    raise ImportError("frames need polars or pandas: run `pip install polars`, or use `.columns()`")


def frame(columns: Columns, asked: Library | None = None) -> Any:
    """A polars or pandas frame with these columns; texts are strings, numbers are floats, and what was not measured is null."""
    chosen = library(asked)
    if chosen == "polars":
        import polars

        # A column in which nothing was measured is one of numbers.
        text = {name: any(isinstance(cell, str) for cell in cells) for name, cells in columns.items()}
        schema = {name: polars.String if text[name] else polars.Float64 for name in columns}
        return polars.DataFrame(columns, schema=schema)
    import pandas

    return pandas.DataFrame(columns)
