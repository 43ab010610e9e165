"""Exceptions: a wrong scenario, and a run that failed."""

from __future__ import annotations

import json
from typing import Any


class PlimsollError(Exception):
    """Any failure of Plimsoll. `str()` gives the message that the command `plimsoll` prints, without `error: `."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ScenarioError(PlimsollError, ValueError):
    """A scenario, a setting or a file that it names is wrong; the command line ends with exit code 2.

    `problems` has what `plimsoll check --json` lists: a dictionary for each mistake, with its `message` and place. It is
    empty where the mistake is in no file.
    """

    @property
    def problems(self) -> list[dict[str, Any]]:
        """Each mistake with its place."""
        found: list[dict[str, Any]] = json.loads(self.args[1]) if len(self.args) > 1 else []
        return found


class RunError(PlimsollError, RuntimeError):
    """A run that failed for no fault of the scenario: it was stopped, a file could not be written, or Plimsoll has a bug."""
