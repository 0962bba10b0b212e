import pytest

from jaxcomet import evaluate, gemm_softmax, hardware, strategies
from jaxcomet.plot.breakdown import Bar, breakdown_figure, speedup_figure, to_bytes
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
