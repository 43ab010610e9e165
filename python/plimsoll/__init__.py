"""Plimsoll's scenarios in virtual time: load, check and run them; sweep seeds and values, here or on a Ray cluster.

    >>> import plimsoll
    >>> scenario = plimsoll.load("examples/web-search.yaml")
    >>> result = scenario.run(seeds=5)
    >>> result.frame("summary")

One seed gives one result, bit for bit the one of `plimsoll sim`, on any machine and any number of them.
"""

from plimsoll.errors import PlimsollError, RunError, ScenarioError
from plimsoll.results import TABLES, Result, Sweep
from plimsoll.scenario import Scenario, load
from plimsoll.sweeps import sweep

__all__ = ["TABLES", "PlimsollError", "Result", "RunError", "Scenario", "ScenarioError", "Sweep", "load", "sweep"]
__version__ = "0.1.0"
