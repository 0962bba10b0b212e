"""How fast searches find: the best objective so far against the evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from jaxcomet.plot.breakdown import SERIES, STYLE

_COLUMNS = 3  # of the legend
_WIDE = 20.0  # ratio from which on an axis is logarithmic
_UNITS = {
    "latency": ("latency [cycles]", 1.0),
    "energy": ("energy [µJ]", 1e6),
    "edp": ("energy-delay product [µJ × cycles]", 1e6),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One search.

    Attributes:
      history: (evaluations, objective) each time a better mapping was found.
      evaluated: evaluations when it ended.
      proven: its last value is proven to be the best.
    """

    history: Sequence[tuple[int, float]]
    evaluated: int
    proven: bool = False


def convergence_figure(
    title: str,
    runs: Mapping[str, Run],
    *,
    objective: Literal["latency", "energy", "edp"],
    bound: float | None = None,
) -> Figure:
    """Steps of the best objective found so far, against the evaluations made, for several searches.

    Args:
      title: what is searched, and where.
      runs: searches by label; those that found nothing stand in the legend alone.
      objective: what is minimised; values are cycles, pJ or their product.
      bound: what no mapping can go below; None: not drawn.

    Returns:
      The figure; axes are logarithmic where their values are far apart.
    """
    name, scale = _UNITS[objective]
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, color="#DDDDDD", linewidth=0.8)
        axes.set_axisbelow(True)
        for index, (label, run) in enumerate(runs.items()):
            width = 1.6 + 0.5 * (len(runs) - 1 - index)  # of equal curves each is seen
            _draw(axes, label, run, SERIES[index % len(SERIES)], width, scale)
        if bound is not None:
            axes.axhline(bound / scale, color="#444444", linestyle="--", linewidth=1.2)
            axes.annotate(
                f"lower bound {written(bound / scale)}",
                (1.0, bound / scale),
                xycoords=("axes fraction", "data"),
                xytext=(0, -4),
                textcoords="offset points",
                ha="right",
                va="top",  # no curve is below
                color="#444444",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
            )
        _scale(axes, runs, scale, bound)
        axes.set_xlabel("evaluations")
        axes.set_ylabel(f"best {name}")
        axes.set_title(title, loc="left", fontsize=11)
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="outside lower center",
            ncols=min(max(len(runs), 1), _COLUMNS),
            frameon=False,
        )
    return figure


def _draw(axes: Axes, label: str, run: Run, colour: str, width: float, scale: float) -> None:
    if not run.history:
        axes.plot([], [], color=colour, label=f"{label}: nothing that fits")
        return
    counts = [count for count, _ in run.history]
    values = [value / scale for _, value in run.history]
    end = max(run.evaluated, counts[-1])
    axes.plot(
        [*counts, end],
        [*values, values[-1]],
        drawstyle="steps-post",
        color=colour,
        linewidth=width,
        marker="o",
        markersize=2.0 + width,
        markevery=range(len(counts)),
        label=f"{label}: {written(values[-1])}{', proven' if run.proven else ''}",
    )
    if run.proven:
        axes.plot([end], [values[-1]], color=colour, marker="*", markersize=13, zorder=5)


def _scale(axes: Axes, runs: Mapping[str, Run], scale: float, bound: float | None) -> None:
    """Chooses linear or logarithmic axes with room around the curves."""
    points = [point for run in runs.values() for point in run.history]
    counts = [c for c, _ in points] + [run.evaluated for run in runs.values() if run.history]
    values = [v / scale for _, v in points] + ([] if bound is None else [bound / scale])
    plain = FuncFormatter(lambda value, _: written(value))
    if counts and max(counts) > _WIDE * max(min(counts), 1):
        axes.set_xscale("log")
    else:
        axes.set_xlim(0, 1.05 * max([*counts, 1]))
    axes.xaxis.set_major_formatter(plain)
    least = min([v for v in values if v > 0], default=1.0)
    if values and max(values) > _WIDE * least:
        axes.set_yscale("log")
        axes.set_ylim(0.55 * least, 1.6 * max(values))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, 1.12 * max([*values, 1e-12]))
    axes.yaxis.set_major_formatter(plain)


def written(value: float, digits: int = 4) -> str:
    """A number in full where that is short, else with a few digits.

    Example:
      >>> written(9665.0), written(21.8634), written(5e9)
      ('9,665', '21.86', '5e+09')
    """
    if value == 0 or 1e3 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"
