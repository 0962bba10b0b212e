"""Draws docs/figures/kernels.png from the samples of benchmarks/kernels.py.

Run from the root of the repository, after the benchmark:
``python docs/figures/kernels.py out/kernels.json``.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxcomet.kernels.measure import from_json, summarize

TARGET = Path(__file__).with_suffix(".png")
PANELS = {
    "gemm-softmax n-split 1024x4096x1024 on 8": "GEMM-softmax, columns on 8 devices",
    "gemm-layernorm k-split 1024x4096x1024 on 8": "GEMM-LayerNorm, contraction on 8 devices",
    "attention causal 4096, 4 heads on 4": "causal attention, 4,096 positions, 4 devices",
    "attention causal gradient 1024, 8 heads on 1": "its gradient, 1,024 positions, one device",
}
"""Cases of the benchmark, and their titles."""

# blue of Okabe and Ito for the kernels, orange for what the partitioner makes, grey for the rest
OURS, AUTOMATIC, OTHER, NOT_TO_DO = "#0072B2", "#E69F00", "#999999", "#D55E00"


def _colour(variant: str) -> str:
    if variant.startswith("automatic"):
        return AUTOMATIC
    if variant == "rows gathered":
        return NOT_TO_DO
    return OTHER if variant.startswith(("plain", "naive", "jax.nn", "matmul")) else OURS


def _size(number: int) -> str:
    """Bytes in words."""
    return f"{number / 2**20:,.1f} MiB" if number >= 2**20 else f"{number / 2**10:,.0f} KiB"


def _panel(axes: Axes, case: Mapping[str, Any], title: str) -> None:
    """Bars of the CPU time of each variant over that of the first, with its temporary memory."""
    samples = from_json(case["samples"])
    base = next(iter(samples))
    found = summarize(samples, base)
    for place, (variant, summary) in enumerate(found.items()):
        ratio = summary.cpu_ratio
        axes.barh(place, ratio.median, color=_colour(variant), height=0.7)
        memory = _size(case["programs"][variant]["temporary bytes"])
        text = axes.text(
            ratio.median, place, f" {ratio.median:.2f}×, {memory}", va="center", size=8
        )
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    axes.axvline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(found)), found)
    axes.invert_yaxis()
    axes.margins(x=0.32)
    axes.set_title(title, size=10)
    axes.set_xlabel(f"CPU time / that of {base}", size=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def draw(cases: Mapping[str, Any]) -> Figure:
    """One panel for each of the cases above."""
    figure = Figure(figsize=(11, 8.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, title) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        _panel(axes, cases[name], title)
    figure.suptitle(
        "Kernels (blue; gathering, red), XLA's partitioner (orange) and plain forms (grey) on "
        "emulated devices, with the temporary memory of a device",
        size=11,
    )
    return figure


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/figures/kernels.py SAMPLES.json")
    found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    draw(found["cases"]).savefig(TARGET, dpi=130)
