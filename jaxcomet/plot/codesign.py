"""A co-design at a glance: the Pareto front, how the search went, and the machine it chose.

The one idea: a target has one colour in all panels, so that a curve, a machine on the front and a
line of the legend are read as one thing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, MultipleLocator, NullFormatter

from jaxcomet.plot.breakdown import STYLE
from jaxcomet.plot.convergence import written

_ALL = 14  # free numbers up to which those that did not change are shown as well
_WIDE = 20.0  # ratio from which on an axis is logarithmic
_SPREAD = 4.0  # the same for improvements, so that small ones are seen beside large ones
_SCALES = ((1e9, "10⁹ cycles"), (1e6, "million cycles"), (1e3, "thousand cycles"), (1.0, "cycles"))
_ENERGIES = ((1e12, "J"), (1e9, "mJ"), (1e6, "µJ"), (1e3, "nJ"), (1.0, "pJ"))
_MEANS = {"geomean": "geometric mean", "total": "weighted sum", "worst": "worst workload"}
_GREY = "#777777"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7")  # Okabe and Ito


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a machine achieves.

    Attributes:
      latency: cycles over the workloads, or their worst ratio to the start's.
      energy: pJ, or the ratio.
      area_mm2: its area.
    """

    latency: float
    energy: float
    area_mm2: float


@dataclass(frozen=True, kw_only=True)
class Change:
    """A free number of the machine chosen.

    Attributes:
      name: its name.
      ratio: chosen / start, > 0.
      before: value of the start, without its unit.
      after: value chosen, with its unit, and whether it is a bound.
    """

    name: str
    ratio: float
    before: str
    after: str


def codesign_figure(
    title: str,
    *,
    front: Sequence[Place],
    start: Place,
    chosen: Mapping[str, Place],
    history: Sequence[tuple[float, Sequence[float]]],
    evaluated: float,
    numbers: Sequence[Change],
    across: Literal["geomean", "total", "worst"] = "geomean",
) -> Figure:
    """Three panels: the front, how the search went, and the machine of the first target.

    Args:
      title: what was designed.
      front: machines that no other one beats in latency, energy and area at once.
      start: the start machine.
      chosen: the best machine of each target, by its name; the first is the one of the last panel.
      history: (joint evaluations, improvement of each target over the start) each time one got
        better; what is not finite or 0 is not drawn.
      evaluated: joint evaluations when the search ended.
      numbers: free numbers of the machine chosen for the first target.
      across: how latency and energy are taken over workloads.

    Returns:
      The figure. Of more targets than there are colours, the others are grey.
    """
    shown = [n for n in numbers if n.ratio != 1.0] if len(numbers) > _ALL else list(numbers)
    with rc_context(STYLE):
        height = max(5.6, 0.27 * len(shown) + 1.9)
        figure = Figure(
            figsize=(16.5, height), layout=ConstrainedLayoutEngine(w_pad=0.12, wspace=0.03)
        )
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.2, 1.0, 0.8))
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        for axes in (left, middle, right):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(True, color="#DDDDDD", linewidth=0.8)
            axes.set_axisbelow(True)
        colours = {
            name: _COLOURS[index] if index < len(_COLOURS) else _GREY
            for index, name in enumerate(chosen)
        }
        _front(figure, left, front, start, chosen, colours, across)
        _convergence(middle, list(colours.values()), history, evaluated)
        _machine(right, next(iter(chosen)), shown, len(numbers) - len(shown))
        figure.legend(
            handles=_legend(colours, history),
            loc="outside lower left",
            ncols=5,
            frameon=False,
        )
    return figure


def _front(
    figure: Figure,
    axes: Axes,
    front: Sequence[Place],
    start: Place,
    chosen: Mapping[str, Place],
    colours: Mapping[str, str],
    across: str,
) -> None:
    places = [*front, start, *chosen.values()]
    scale, unit = _fit(_SCALES, max(p.latency for p in places))
    energy_scale, energy_unit = _fit(_ENERGIES, max(p.energy for p in places))
    if across == "worst":
        scale, unit, energy_scale, energy_unit = 1.0, "start = 1", 1.0, "start = 1"
    if front:
        drawn = axes.scatter(
            [p.latency / scale for p in front],
            [p.energy / energy_scale for p in front],
            c=[p.area_mm2 for p in front],
            cmap="viridis",
            s=24,
            linewidths=0,
        )
        bar = figure.colorbar(drawn, ax=axes, pad=0.02, aspect=30)
        bar.set_label("area [mm²]")
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    earlier: list[Place] = []
    for name, place in chosen.items():
        labelled, same = colours[name] != _GREY, earlier.count(place)
        earlier.append(place)
        axes.plot(
            place.latency / scale,
            place.energy / energy_scale,
            marker="o",
            markersize=11.0 + 4.0 * same if labelled else 8.0,  # rings of one machine are all seen
            markerfacecolor="none",
            markeredgecolor=colours[name],
            markeredgewidth=1.8 if labelled else 1.0,
            zorder=3,
        )
    axes.plot(
        start.latency / scale,
        start.energy / energy_scale,
        marker="*",
        markersize=14,
        color="black",
        zorder=4,
    )
    mean = _MEANS[across]
    axes.set_xlabel(f"latency, {mean} [{unit}]")
    axes.set_ylabel(f"energy, {mean} [{energy_unit}]")
    axes.set_title("Pareto front of latency, energy and area", loc="left", fontsize=11)
    _span(axes.xaxis, [p.latency / scale for p in places])
    _span(axes.yaxis, [p.energy / energy_scale for p in places])


def _fit(scales: Sequence[tuple[float, str]], largest: float) -> tuple[float, str]:
    """The scale in which values have few digits before the point."""
    return next((s for s in scales if largest >= s[0]), scales[-1])


def _span(axis: Axis, values: Sequence[float]) -> None:
    """Room around the values; logarithmic where they are far apart."""
    low, high = min(values), max(values)
    logarithmic = low > 0 and high > _WIDE * low
    if logarithmic:
        margin = (high / low) ** 0.06
        _logarithmic(axis)
        limits = (low / margin, high * margin)
    else:
        margin = 0.07 * (high - low) or 0.1 * abs(high) or 1.0
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        limits = (low - margin, high + margin)
    (axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim)(*limits)  # pyright: ignore[reportAttributeAccessIssue]
    axis.set_major_formatter(FuncFormatter(lambda value, _: written(value, 6)))


def _logarithmic(axis: Axis) -> None:
    axes = axis.axes
    (axes.set_xscale if axis.axis_name == "x" else axes.set_yscale)("log")  # pyright: ignore[reportAttributeAccessIssue]
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axis.set_minor_formatter(NullFormatter())


def _convergence(
    axes: Axes,
    colours: Sequence[str],
    history: Sequence[tuple[float, Sequence[float]]],
    evaluated: float,
) -> None:
    counts = [count for count, _ in history if count > 0]
    first = min(counts, default=1.0)
    end = max([evaluated, *counts, first])
    drawn: list[float] = []
    for number in reversed(range(len(colours))):  # the first target on top
        steps = [
            (max(count, first), values[number])
            for count, values in history
            if math.isfinite(values[number]) and values[number] > 0
        ]
        if not steps:
            continue
        steps.append((end, steps[-1][1]))
        drawn += [value for _, value in steps]
        labelled = colours[number] != _GREY
        axes.plot(
            [count for count, _ in steps],
            [value for _, value in steps],
            drawstyle="steps-post",
            color=colours[number],
            linewidth=2.0 if labelled else 0.8,
            zorder=3 if labelled else 2,
        )
    if end > _WIDE * first:
        axes.set_xscale("log")
        subs = (1.0,) if end > 100.0 * first else (1.0, 2.0, 5.0)
        axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=9))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(first, 1.15 * end)
    else:
        axes.set_xlim(0, 1.05 * end)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, 6)))
    if drawn and max(drawn) > _SPREAD * min(drawn):
        _logarithmic(axes.yaxis)
        axes.set_ylim(0.85 * min(drawn), 1.25 * max(drawn))
    elif drawn:
        low, high = min(drawn), max(drawn)
        room = 0.06 * (high - low) or 0.1
        axes.set_ylim(low - room, high + room)
    axes.axhline(1.0, color="#444444", linewidth=0.9, linestyle="--")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_xlabel("joint evaluations")
    axes.set_ylabel("improvement over the start [times]")
    axes.set_title("Best so far", loc="left", fontsize=11)


def _machine(axes: Axes, target: str, numbers: Sequence[Change], hidden: int) -> None:
    powers = [math.log2(n.ratio) for n in numbers]
    places = range(len(numbers))
    colours = ["#0072B2" if p > 0 else "#D55E00" for p in powers]
    axes.barh(places, powers, color=colours, height=0.62 if len(numbers) > 5 else 0.4)
    axes.axvline(0.0, color="#444444", linewidth=0.9)
    for place, number in zip(places, numbers, strict=True):
        changed = number.ratio != 1.0
        axes.annotate(
            f"{number.before} → {number.after}" if changed else number.after,
            (1.0, place),
            xycoords=("axes fraction", "data"),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color="black" if changed else _GREY,
            annotation_clip=False,
        )
    axes.set_yticks(places, [n.name for n in numbers])
    axes.set_ylim(len(numbers) - 0.4, -0.6)  # the first on top
    axes.yaxis.grid(False)
    axes.tick_params(axis="y", length=0)
    most = max([abs(p) for p in powers], default=0.0) or 1.0
    low = -1.1 * max([-p for p in powers if p < 0], default=0.25 * most)
    high = 1.1 * max([p for p in powers if p > 0], default=0.25 * most)
    axes.set_xlim(low, high)
    every = max(1, math.ceil((high - low) / 7.0))
    axes.xaxis.set_major_locator(MultipleLocator(every))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _factor(value)))
    axes.set_xlabel("chosen against start [times, logarithmic]")
    note = f" ({hidden} more as in the start)" if hidden else ""
    axes.set_title(f"Machine for {target}{note}", loc="left", fontsize=11)


def _factor(power: float) -> str:
    """A power of two as a factor.

    Example:
      >>> _factor(2.0), _factor(-1.0), _factor(0.0)
      ('×4', '÷2', '1')
    """
    if power == 0:
        return "1"
    return f"{'×' if power > 0 else '÷'}{2.0 ** abs(power):g}"


def _legend(
    colours: Mapping[str, str], history: Sequence[tuple[float, Sequence[float]]]
) -> list[Line2D]:
    handles = [
        Line2D([], [], marker="*", color="black", markersize=12, linestyle="", label="start")
    ]
    last = history[-1][1] if history else [math.nan] * len(colours)
    for (name, colour), value in zip(colours.items(), last, strict=True):
        if colour != _GREY:
            gain = f": {value:.2f}×" if math.isfinite(value) and value > 0 else ""
            handles.append(
                Line2D(
                    [],
                    [],
                    color=colour,
                    linewidth=2.0,
                    marker="o",
                    markersize=10,
                    markerfacecolor="white",
                    markeredgewidth=1.8,
                    label=f"{name}{gain}",
                )
            )
    rest = sum(colour == _GREY for colour in colours.values())
    if rest:
        handles.append(
            Line2D(
                [],
                [],
                color=_GREY,
                linewidth=0.8,
                marker="o",
                markerfacecolor="white",
                label=f"{rest} other target{'s' * (rest > 1)}",
            )
        )
    return handles
