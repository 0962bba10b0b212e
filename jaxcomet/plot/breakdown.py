"""Bars: where the cycles of each strategy go, and how much faster each is than `unfused`.

Figures are made without pyplot, so that nothing global changes. Colours are those of Okabe and Ito
(https://jfly.uni-koeln.de/color/), which readers with any colour vision can tell apart.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from jaxcomet.plot.groups import GROUPS, MEANING

_COLOURS = ("#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#999999", "#009E73")
SERIES = ("#E69F00", "#56B4E9", "#0072B2", "#009E73", "#D55E00", "#999999")
STYLE: dict[Any, Any] = {"font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "jaxcomet"}


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One strategy in a breakdown figure.

    Attributes:
      label: its name.
      parts: cycles by group (`groups.GROUPS`).
      speedup: latency of the baseline divided by its own; None where there is no baseline.
    """

    label: str
    parts: Mapping[str, float]
    speedup: float | None


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.grid(True, color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)


def _broken(label: str) -> str:
    """A strategy's label on two lines at most: options below the name."""
    return label.replace("[", "\n[", 1)


def breakdown_figure(title: str, bars: Sequence[Bar]) -> Figure:
    """Stacked bars of the latency parts of each strategy, in cycles.

    Args:
      title: what is compared, and where.
      bars: one per strategy, left to right; groups that are 0 everywhere are left out.

    Returns:
      The figure; total cycles and speedup stand above each bar.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(max(1.6 * len(bars) + 3.6, 6.0), 4.8), layout="constrained")
        axes = figure.add_subplot()
        _plain(axes)
        names = [*GROUPS, *sorted({g for b in bars for g in b.parts} - set(GROUPS))]
        names = [g for g in names if any(b.parts.get(g, 0.0) > 0 for b in bars)]
        bottoms = [0.0] * len(bars)
        for name in names:
            heights = [float(b.parts.get(name, 0.0)) for b in bars]
            colour = _COLOURS[GROUPS.index(name)] if name in GROUPS else "#CC79A7"
            axes.bar(
                range(len(bars)),
                heights,
                bottom=bottoms,
                width=0.62,
                color=colour,
                edgecolor="white",
                linewidth=0.6,
                label=MEANING.get(name, name),
            )
            bottoms = [b + h for b, h in zip(bottoms, heights, strict=True)]
        for x, (bar, total) in enumerate(zip(bars, bottoms, strict=True)):
            speedup = "" if bar.speedup is None else f"\n{bar.speedup:.2f}×"
            axes.annotate(
                f"{total:,.0f}{speedup}",
                (x, total),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                va="bottom",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
            )
        axes.set_xticks(range(len(bars)), [_broken(b.label) for b in bars])
        axes.set_ylim(0, 1.16 * max([*bottoms, 1.0]))
        axes.set_ylabel("latency [cycles]")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False)
    return figure


def speedup_figure(
    title: str, shapes: Sequence[str], speedups: Mapping[str, Sequence[float | None]]
) -> Figure:
    """Grouped bars of the speedup of each strategy over the baseline, on a logarithmic axis.

    Args:
      title: what is compared.
      shapes: labels of the groups.
      speedups: per strategy one value per shape; None where it cannot run.

    Returns:
      The figure: bars rise and fall from 1; a cross stands where a strategy cannot run.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(max(7.0, 1.1 * len(shapes) + 1.2), 4.6), layout="constrained")
        axes = figure.add_subplot()
        _plain(axes)
        width = 0.84 / max(len(speedups), 1)
        values = [v for row in speedups.values() for v in row if v is not None]
        for index, (name, row) in enumerate(speedups.items()):
            offset = (index - (len(speedups) - 1) / 2) * width
            places = [x + offset for x in range(len(shapes))]
            heights = [0.0 if v is None else v - 1.0 for v in row]
            colour = SERIES[index % len(SERIES)]
            axes.bar(places, heights, bottom=1.0, width=0.92 * width, color=colour, label=name)
            for x, value in zip(places, row, strict=True):
                slower = value is not None and value < 1.0
                axes.annotate(
                    _short(value),
                    (x, 1.0 if value is None else value),
                    xytext=(0, -3 if slower else 2),
                    textcoords="offset points",
                    ha="center",
                    va="top" if slower else "bottom",
                    fontsize=7.5,
                )
        axes.axhline(1.0, color="#444444", linewidth=0.9)
        axes.set_yscale("log")
        axes.set_ylim(0.7 * min([*values, 0.8]), 1.5 * max([*values, 1.5]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        axes.set_xticks(range(len(shapes)), list(shapes))
        axes.set_xlim(-0.6, len(shapes) - 0.4)
        axes.set_ylabel("speedup over unfused")
        axes.set_title(title, loc="left", fontsize=11)
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="outside lower center",
            ncols=max(len(speedups), 1),
            frameon=False,
        )
    return figure


def _short(speedup: float | None) -> str:
    """Three digits at most, a cross where there is no value."""
    if speedup is None:
        return "×"
    return f"{speedup:.1f}" if speedup >= 10.0 else f"{speedup:.{2 if speedup >= 0.1 else 3}f}"


def to_bytes(figure: Figure, kind: Literal["png", "svg", "pdf"]) -> bytes:
    """The figure as the content of a file."""
    FigureCanvasAgg(figure)
    content = io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # same content, same bytes
    with rc_context(STYLE):
        figure.savefig(content, format=kind, dpi=160, metadata=dates.get(kind))
    return content.getvalue()
