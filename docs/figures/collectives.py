"""Draws docs/figures/collectives.png: time of an all-reduce against its size, by algorithm.

Run from the root of the repository: ``python docs/figures/collectives.py``.
"""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxcomet import hardware
from jaxcomet._compat import enable_x64
from jaxcomet.cost import Fabric, algorithms, bound, exchange

TARGET = Path(__file__).with_suffix(".png")

# colours of Okabe and Ito, told apart by dashes and markers in grey as well
STYLES = {
    "one-shot": ("#D55E00", ":", "v"),
    "tree": ("#999999", "-.", "^"),
    "recursive-doubling": ("#E69F00", "--", "s"),
    "halving-doubling": ("#009E73", "-", "D"),
    "direct": ("#0072B2", "-", "o"),
    "ring": ("#56B4E9", "--", "x"),
    "hierarchical": ("#CC79A7", "-", "P"),
    "bidirectional-ring": ("#000000", "-.", "*"),
}


def draw() -> Figure:
    """All-reduce between 4 x 4 participants with the links of the edge machine's global buffers."""
    gb = hardware.load("edge").memories["gb"]
    assert gb.network is not None
    fabric = Fabric(
        topology="mesh",
        x=4.0,
        y=4.0,
        step_latency=gb.network.hop_latency_cycles + gb.network.queuing_delay_cycles,
        bandwidth=64.0,
    )
    sizes = 2.0 ** np.arange(4, 21)
    assert set(STYLES) == set(algorithms("all_reduce", "mesh"))
    figure = Figure(figsize=(8.2, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, (colour, dashes, marker) in STYLES.items():
        with enable_x64(True):
            cycles = exchange("all_reduce", sizes, fabric, algorithm=name).time
        axes.loglog(
            sizes,
            np.asarray(cycles),
            color=colour,
            linestyle=dashes,
            marker=marker,
            # two lines lie close together: the markers of one are open and larger
            markersize=9 if name == "hierarchical" else 5,
            fillstyle="none" if name == "hierarchical" else "full",
            linewidth=1.6,
            label=name,
        )
    with enable_x64(True):
        least = bound("all_reduce", sizes, fabric)
    axes.loglog(sizes, np.asarray(least), color="#BBBBBB", linewidth=5, zorder=0, label="bound")
    axes.set_xlabel("bytes held by each participant")
    axes.set_ylabel("time [cycles], without combining")
    axes.set_xticks([2.0**k for k in (4, 8, 12, 16, 20)], ["16", "256", "4 Ki", "64 Ki", "1 Mi"])
    axes.minorticks_off()
    axes.grid(True, color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        "All-reduce between 4 × 4 participants on a mesh, 7 cycles a hop, 64 bytes a cycle",
        x=0.01,
        ha="left",
        fontsize=11,
    )
    figure.legend(loc="outside right center", frameon=False)
    return figure


if __name__ == "__main__":
    draw().savefig(TARGET, dpi=130, metadata={"Software": None})
