"""Plots by matplotlib, which is not needed before one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.results import Result, Sweep, Table


def _panels(count: int, axes: Any) -> tuple[Any, list[Any]]:
    """A figure with this number of panels above each other, or the axes that the caller has."""
    if axes is not None:
        given = list(getattr(axes, "flat", axes if isinstance(axes, (list, tuple)) else [axes]))
        if len(given) < count:
            raise ValueError(f"this plot has {count} panels; {len(given)} axes are given")
        return given[0].figure, given
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: run `pip install matplotlib`") from error
    figure = Figure(figsize=(8, 2.4 * count + 0.6), layout="constrained")
    return figure, list(figure.subplots(count, 1, squeeze=False).flat)


def _lines(columns: dict[str, list[Any]], keys: tuple[str, ...]) -> dict[tuple[Any, ...], list[int]]:
    """The numbers of the lines of each combination of these columns' values, in the table's order."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for index, key in enumerate(zip(*(columns[key] for key in keys), strict=True)):
        found.setdefault(key, []).append(index)
    return found


def _finish(panels: list[Any], below: str, left: str) -> None:
    for axis in panels:
        axis.set_ylim(bottom=0)
        axis.set_ylabel(left)
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize="small", loc="best")
    panels[-1].set_xlabel(below)


# What each plot over time takes: the table, what a line is, the column, its factor and its axis.
OVER_TIME: dict[str, tuple[Table, tuple[str, ...], str, float, str]] = {
    "cwnd": ("series-flows", ("workload", "flow"), "cwnd_bytes", 1e-3, "congestion window (kB)"),
    "rtt": ("series-flows", ("workload", "flow"), "srtt_seconds", 1e3, "smoothed round-trip time (ms)"),
    "rate": ("series-flows", ("workload", "flow"), "bits_per_second", 1e-6, "acknowledged (Mb/s)"),
    "queues": ("series-links", ("link",), "queue_bytes", 1e-3, "queue (kB)"),
    "links": ("series-links", ("link",), "bits_per_second", 1e-6, "sent (Mb/s)"),
}

KINDS = ("throughput", "latency", *OVER_TIME)


def plot(result: Result, kind: str, axes: Any) -> Any:
    """A figure of one result; see `Result.plot`."""
    if kind == "throughput":
        return _throughput(result, axes)
    if kind == "latency":
        return _latency(result, axes)
    if kind in OVER_TIME:
        return _over_time(result, kind, axes)
    raise ValueError(f"there is no plot {kind!r}; there are {', '.join(KINDS)}")


def _throughput(result: Result, axes: Any) -> Any:
    columns = result.columns("throughput")
    first = [n for n, pair in enumerate(columns["pair"]) if pair == 0]
    systems = list(dict.fromkeys(columns["system"]))
    figure, panels = _panels(len(systems), axes)
    for axis, system in zip(panels, systems, strict=False):
        sums: dict[str, dict[float, float]] = {}
        for n in first:
            if columns["system"][n] == system:
                tenant = sums.setdefault(columns["tenant"][n], {})
                at = columns["from_seconds"][n]
                tenant[at] = tenant.get(at, 0.0) + (columns["bits_per_second"][n] or 0.0)
        for name, rates in sums.items():
            axis.step(list(rates), [rate * 1e-6 for rate in rates.values()], where="post", label=name)
        axis.set_title(system, fontsize="medium")
    _finish(panels, "time (s)", "throughput (Mb/s)")
    return figure


def _latency(result: Result, axes: Any) -> Any:
    columns = result.columns("latency")
    figure, panels = _panels(1, axes)
    for (system, workload), lines in _lines(columns, ("system", "workload")).items():
        milliseconds = [columns["seconds"][n] * 1e3 for n in lines]
        panels[0].step(milliseconds, [columns["part"][n] for n in lines], label=f"{system}, {workload}")
    panels[0].set_xscale("log")
    _finish(panels, "latency (ms)", "part of requests")
    return figure


def _over_time(result: Result, kind: str, axes: Any) -> Any:
    table, line, column, factor, label = OVER_TIME[kind]
    columns = result.columns(table)
    systems = list(dict.fromkeys(columns["system"]))
    if not systems:
        raise ValueError(f"the plot {kind!r} needs traces: run with `series=True`")
    figure, panels = _panels(len(systems), axes)
    for (system, pair, *names), lines in _lines(columns, ("system", "pair", *line)).items():
        if pair != 0:
            continue
        axis = panels[systems.index(system)]
        values = [columns[column][n] for n in lines]
        shown = [value * factor if value is not None else float("nan") for value in values]
        name = " ".join(f"{part:.0f}" if isinstance(part, float) else part for part in names)
        axis.plot([columns["at_seconds"][n] for n in lines], shown, label=name)
        axis.set_title(system, fontsize="medium")
    _finish(panels, "time (s)", label)
    return figure


def plot_sweep(sweep: Sweep, figure_name: str, over: str | None, axes: Any) -> Any:
    """A figure of all points; see `Sweep.plot`."""
    columns = sweep.columns()
    paths = list(dict.fromkeys(path for point in sweep for path in point.settings))
    if not paths:
        raise ValueError("nothing is varied, so there is nothing to plot over; use `sweep[0].plot()`")
    over = paths[0] if over is None else over
    if over not in paths:
        raise ValueError(f"{over!r} is not varied; varied are {', '.join(paths)}")
    if figure_name not in columns:
        known = [name for name in columns if name not in (*paths, "system")]
        raise ValueError(f"there is no figure {figure_name!r}; there are {', '.join(known)}")
    figure, panels = _panels(1, axes)
    others = tuple(path for path in paths if path != over)
    values = list(dict.fromkeys(columns[over]))
    for (system, *settings), lines in _lines(columns, ("system", *others)).items():
        label = ", ".join([system, *(f"{path}={value}" for path, value in zip(others, settings, strict=True))])
        places = [values.index(columns[over][n]) for n in lines]
        known = [columns[figure_name][n] for n in lines]
        panels[0].plot(places, [float("nan") if one is None else one for one in known], marker="o", label=label)
    panels[0].set_xticks(range(len(values)), values)
    _finish(panels, over, figure_name)
    return figure
