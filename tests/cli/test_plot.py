import pytest

from jaxcomet import evaluate, gemm_softmax, hardware, strategies
from jaxcomet.plot.breakdown import Bar, breakdown_figure, speedup_figure, to_bytes
from jaxcomet.plot.convergence import Run, convergence_figure
from jaxcomet.plot.groups import GROUPS, latency_details, latency_groups

FACTORS = {"N_dram_sx": 2, "N_dram_sy": 2, "N_gb_sx": 2, "N_gb_sy": 2, "N_comp": 64, "K_comp": 128}


def test_groups_and_details_sum_to_the_latency():
    machine = hardware.load("edge")
    workload = gemm_softmax(1, 1024, 128)
    mapping = strategies.build(workload, machine, "fused-gemm-distsm", FACTORS)
    cost = evaluate(workload, mapping, machine)
    groups = latency_groups(cost, machine)
    assert tuple(groups) == GROUPS
    assert sum(groups.values()) == cost.latency_cycles
    assert sum(latency_details(cost, machine).values()) == cost.latency_cycles
    assert groups["matrix compute"] > 0
    assert groups["vector compute"] > 0
    assert groups["collectives"] > 0


def test_bars_are_as_high_as_the_parts_and_say_total_and_speedup():
    bars = [
        Bar(label="a", parts={"CS": 1000.0, "OS": 234.0}, speedup=2.0),
        Bar(label="b[weights=streamed]", parts={"CS": 2468.0}, speedup=None),
    ]
    figure = breakdown_figure("title", bars)
    axes = figure.axes[0]
    heights = [patch.get_height() for patch in axes.patches]  # pyright: ignore[reportAttributeAccessIssue]
    assert heights == [1000, 2468, 234, 0]
    assert [text.get_text() for text in axes.texts] == ["1,234\n2.00×", "2,468"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b\n[weights=streamed]"]


def test_speedups_below_one_hang_from_the_line_and_gaps_are_crossed():
    figure = speedup_figure("title", ["e1", "e2"], {"a": [4.0, 0.5], "b": [None, 12.34]})
    axes = figure.axes[0]
    heights = [patch.get_height() for patch in axes.patches]  # pyright: ignore[reportAttributeAccessIssue]
    assert heights == pytest.approx([3.0, -0.5, 0.0, 11.34])
    assert [text.get_text() for text in axes.texts] == ["4.00", "0.50", "×", "12.3"]


def test_the_same_figure_is_the_same_file():
    def content() -> bytes:
        return to_bytes(speedup_figure("t", ["e1"], {"a": [2.0]}), "svg")

    assert content() == content()


def test_searches_are_steps_above_their_bound_and_what_is_proven_has_a_star():
    runs = {
        "enumerate": Run(history=((10, 3000.0), (30, 2000.0)), evaluated=90, proven=True),
        "random": Run(history=((5, 4000.0),), evaluated=60),
        "cma": Run(history=(), evaluated=60),
    }
    figure = convergence_figure("gemm on edge", runs, objective="latency", bound=1500.0)
    (axes,) = figure.axes
    proven, star, found, none, bound = axes.lines
    assert proven.get_xydata().tolist() == [[10, 3000], [30, 2000], [90, 2000]]  # pyright: ignore[reportAttributeAccessIssue]
    assert star.get_xydata().tolist() == [[90, 2000]]  # pyright: ignore[reportAttributeAccessIssue]
    assert found.get_xydata().tolist() == [[5, 4000], [60, 4000]]  # pyright: ignore[reportAttributeAccessIssue]
    assert len(none.get_xydata()) == 0  # pyright: ignore[reportArgumentType]
    assert bound.get_ydata() == [1500.0, 1500.0]
    assert bound.get_linestyle() == "--"
    assert [text.get_text() for text in axes.texts] == ["lower bound 1,500"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "enumerate: 2,000, proven",
        "random: 4,000",
        "cma: nothing that fits",
    ]
    assert axes.get_title(loc="left") == "gemm on edge"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("evaluations", "best latency [cycles]")
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")


def test_axes_are_logarithmic_where_values_are_far_apart():
    run = Run(history=((1, 5e9), (100, 2e6)), evaluated=5000)
    (axes,) = convergence_figure("", {"local": run}, objective="energy").axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_ylabel() == "best energy [µJ]"
    assert axes.lines[0].get_ydata().tolist() == [5000.0, 2.0, 2.0]  # pyright: ignore[reportAttributeAccessIssue]
