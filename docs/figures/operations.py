"""Draws docs/figures/<operation>.png: where the cycles of an operation's strategies go.

Every bar is the best of all mappings of one strategy. Run from the root of the repository:
``python docs/figures/operations.py`` draws all, ``... operations.py attention`` one (about 40
seconds each).
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from jaxcomet import attention, gemm, gemm_layernorm, gemm_softmax, hardware, strategies
from jaxcomet.optimize.enumeration import Best, enumerate_mappings
from jaxcomet.plot.breakdown import Bar, breakdown_figure, to_bytes
from jaxcomet.plot.groups import GROUPS, MEANING, latency_groups
from jaxcomet.workload import CompoundOp

FOLDER = Path(__file__).parent

# the groups of a bar can be told apart without colour
HATCHES = dict(zip(GROUPS, ("", "....", "", "////", "", "xxxx"), strict=True))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One bar.

    Attributes:
      label: below the bar; options on a second line.
      strategy: name of the strategy.
      options: its options.
      changes: entries of the machine that are changed.
      workload: the operation, where the bars differ in it.
    """

    label: str
    strategy: str
    options: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[tuple[str, str], ...] = ()
    workload: CompoundOp | None = None


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One figure: a title, an operation, its bars; the first bar is the baseline."""

    title: str
    workload: CompoundOp
    cases: tuple[Case, ...]


_FUSED = ("unfused", "fused-dist{0}", "fused-gemm-{0}", "fused-gemm-dist{0}")


def _rows(kind: str) -> tuple[Case, ...]:
    return tuple(Case(label=name, strategy=name) for name in (n.format(kind) for n in _FUSED))


PICTURES = {
    "gemm": Picture(
        title="GEMM 1024 × 1024 × 256 on edge, by bandwidth of DRAM [and of the mesh below it]",
        workload=gemm(1024, 1024, 256),
        cases=tuple(
            Case(
                label=f"{rate} byte/cycle[mesh {mesh}]",
                strategy="tiled",
                changes=(
                    ("memory.dram.child_bandwidth", str(rate)),
                    ("memory.gb.network.port_bandwidth", str(mesh)),
                    ("memory.gb.network.channel_width", str(8 * mesh)),
                ),
            )
            for rate, mesh in ((25, 64), (50, 64), (100, 64), (100, 128))
        ),
    ),
    "gemm-softmax": Picture(
        title="GEMM-softmax 1024 × 1024 × 256 on edge",
        workload=gemm_softmax(1024, 1024, 256),
        cases=_rows("sm"),
    ),
    "gemm-layernorm": Picture(
        title="GEMM-LayerNorm and GEMM-RMSNorm 1024 × 1024 × 256 on edge",
        workload=gemm_layernorm(1024, 1024, 256),
        cases=(
            *_rows("ln"),
            Case(
                label="fused-gemm-distln[RMSNorm]",
                strategy="fused-gemm-distln",
                workload=gemm_layernorm(1024, 1024, 256, norm="rms"),
            ),
        ),
    ),
    "attention": Picture(
        title="Attention, 12 heads × 1024 queries × 1024 keys × width 64, on edge",
        workload=attention(1, 12, 1024, 1024, 64),
        cases=(
            Case(label="unfused[spread=keys]", strategy="unfused", options={"spread": "keys"}),
            Case(label="partial[spread=keys]", strategy="partial", options={"spread": "keys"}),
            Case(label="row-fused[spread=keys]", strategy="row-fused", options={"spread": "keys"}),
            Case(label="flash[spread=keys]", strategy="flash", options={"spread": "keys"}),
            Case(label="flash[spread=heads]", strategy="flash"),
            Case(label="ring", strategy="ring"),
        ),
    ),
}
"""The figures by the name of their operation."""


def best(picture: Picture) -> dict[str, Best]:
    """The best mapping of each bar."""
    found = {}
    for case in picture.cases:
        workload = case.workload or picture.workload
        machine = hardware.load("edge", case.changes)
        strategy = strategies.get(workload.name, case.strategy)
        found[case.label] = enumerate_mappings(
            workload, machine, strategy, options=dict(case.options)
        )
        assert found[case.label].cost.feasible, f"no mapping of {case.label} fits"
    return found


def draw(picture: Picture, found: Mapping[str, Best]) -> Figure:
    """Stacked bars of the latency of each strategy, cycles and speedup above."""
    machine = hardware.load("edge")
    costs = [b.cost for b in found.values()]
    figure = breakdown_figure(
        picture.title,
        [
            Bar(
                label=label,
                parts=latency_groups(cost, machine),
                speedup=float(costs[0].latency_cycles) / float(cost.latency_cycles),
            )
            for label, cost in zip(found, costs, strict=True)
        ],
    )
    hatches = {MEANING.get(group, group): hatch for group, hatch in HATCHES.items()}
    (axes,) = figure.axes
    for container in axes.containers:
        for patch in container:
            patch.set_hatch(hatches[container.get_label()])
    (legend,) = figure.legends
    for patch, text in zip(legend.get_patches(), legend.get_texts(), strict=True):
        patch.set_hatch(hatches[text.get_text()])
        patch.set_edgecolor("white")
    return figure


if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        found = best(PICTURES[name])
        for label, result in found.items():
            cost = result.cost
            sys.stdout.write(
                f"{name} {label}: {cost.latency_cycles:,.0f} cycles, "
                f"{cost.energy_pj / 1e6:,.1f} uJ, {cost.root_traffic_bytes:,.0f} bytes over the "
                f"outermost boundary, {result.evaluated:,} mappings\n"
            )
        (FOLDER / f"{name}.png").write_bytes(to_bytes(draw(PICTURES[name], found), "png"))
