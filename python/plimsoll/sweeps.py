"""Sweeps: seeds and grids of values, in this process, in several, or on a Ray cluster."""

from __future__ import annotations

import functools
import multiprocessing
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Literal

from plimsoll._native import Study
from plimsoll.results import Sweep
from plimsoll.scenario import Overrides, Scenario, load
from plimsoll.study import Plan, grid_of, seed_range, settings_of

Where = Literal["ray", "threads", "processes"]

# Parts for each worker: the more, the evener the work, and the more often the scenario is sent.
PARTS = 4


def sweep(
    scenario: Scenario | str | os.PathLike[str],
    grid: Mapping[str, Iterable[Any]] | None = None,
    seeds: int | Iterable[int] | None = None,
    on: Where | None = None,
    *,
    duration: str | float | None = None,
    overrides: Overrides | None = None,
    systems: Iterable[str] = (),
    short: bool = False,
    series: bool = False,
    workers: int | None = None,
) -> Sweep:
    """Runs a scenario at every point of a grid, with every seed.

    The results are the same wherever the runs are carried out. What the file's own `sweep` varies is varied, too, except
    paths that the grid or `overrides` set.

    Args:
        scenario: a scenario, or what `load` takes.
        grid: values by path, such as `{"tenants.shop.weight": [1, 3], "rate": ["1Gbps", "10Gbps"]}`; every combination is a
            point. `{"a + b": [(1, 2), (3, 4)]}` varies two paths together.
        seeds: as for `Scenario.run`.
        on: `"ray"` uses a Ray cluster, and starts a local one if the program is connected to none; `"threads"` uses threads of
            this process; `"processes"` uses new processes on this machine; `None` runs one after the other.
        workers: threads or processes, as many as there are cores unless stated; for Ray the parts that are under way at once, as
            many as the cluster has cores.
        duration, overrides, systems, short, series: as for `Scenario.run`.

    On Ray each machine needs this package, and the other files that the scenario names under the same path: a shared folder, or
    `ray.init(runtime_env={"working_dir": "."})` and relative paths.

    Raises:
        ScenarioError, RunError: the first failure; what still runs is ended.
        ValueError: seeds, grid or `on` are wrong.
        ImportError: `on="ray"` without Ray.
    """
    if on not in (None, "threads", "processes", "ray"):
        raise ValueError(f"`on` is 'ray', 'threads', 'processes' or None, not {on!r}")
    if workers is not None and workers < 1:
        raise ValueError(f"`workers` is a number from 1, not {workers}")
    loaded = scenario if isinstance(scenario, Scenario) else load(scenario)
    fixed = settings_of(overrides or {}, duration)
    grid_read = grid_of(grid or {})
    chosen, counted, token = tuple(systems), seed_range(seeds), uuid.uuid4().hex
    plan = Plan(loaded.path, loaded.text, short, chosen, fixed, grid_read, counted, series, token)
    study = plan.study(1 if on is None else workers)
    if on == "ray":
        outcomes = study.collect(list(_on_ray(plan, study.runs, workers)))
    elif on == "processes":
        outcomes = study.collect(list(_on_processes(plan, study.runs, workers or os.cpu_count() or 1)))
    else:
        outcomes = study.run()
    return Sweep(loaded.name, study, outcomes, plan.seeds_of(study))


def _parts(runs: int, workers: int) -> list[list[int]]:
    """The numbers of all runs in parts of about the same length, which alternate, as neighbours take about as long."""
    count = max(1, min(runs, workers * PARTS))
    return [list(range(first, runs, count)) for first in range(count)]


def _in_order(parts: Sequence[Sequence[int]], found: Iterable[Sequence[bytes]]) -> Iterator[bytes]:
    by_number: dict[int, bytes] = {}
    for numbers, packed in zip(parts, found, strict=True):
        by_number.update(zip(numbers, packed, strict=True))
    return (by_number[number] for number in sorted(by_number))


@functools.lru_cache(maxsize=2)
def _study(plan: Plan) -> Study:
    """A worker gets several parts of one plan, and reads its scenario once."""
    return plan.study(threads=1)


def _run_part(plan: Plan, numbers: list[int]) -> list[bytes]:
    return _study(plan).part(numbers)


def _on_processes(plan: Plan, runs: int, workers: int) -> Iterator[bytes]:
    parts = _parts(runs, workers)
    # A forked process would lack this one's threads, and hang on their locks.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(parts)), mp_context=context)
    try:
        found = list(pool.map(_run_part, [plan] * len(parts), parts))
    except BaseException:
        _end(pool)
        raise
    pool.shutdown()
    return _in_order(parts, found)


def _end(pool: ProcessPoolExecutor) -> None:
    """Ends the pool at once, runs that are under way included."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


def _on_ray(plan: Plan, runs: int, workers: int | None) -> Iterator[bytes]:
    try:
        import ray
    except ImportError as error:
        raise ImportError("`on=\"ray\"` needs Ray: run `pip install ray`") from error
    if not ray.is_initialized():
        ray.init(num_cpus=workers, log_to_driver=False, include_dashboard=False)
    cores = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    parts = _parts(runs, cores)
    task = ray.remote(_run_part).options(max_retries=3, num_cpus=1)
    shared = ray.put(plan)
    waiting = [(index, part) for index, part in enumerate(parts)]
    under_way: dict[Any, int] = {}
    found: list[list[bytes]] = [[] for _ in parts]
    try:
        while waiting or under_way:
            while waiting and len(under_way) < cores:
                index, part = waiting.pop(0)
                under_way[task.remote(shared, part)] = index
            # Ray sees a signal only between short waits.
            done, _ = ray.wait(list(under_way), num_returns=1, timeout=0.1)
            for reference in done:
                found[under_way.pop(reference)] = ray.get(reference)
    except BaseException as error:
        for reference in under_way:
            ray.cancel(reference)
        cause = getattr(error, "cause", None)
        if isinstance(error, ray.exceptions.RayTaskError) and isinstance(cause, Exception):
            raise cause from None
        raise
    return _in_order(parts, found)
