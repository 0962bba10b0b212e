import pytest

from jaxcomet.cli.reasons import _difference
from jaxcomet.cli.tables import count
from jaxcomet.mapping import MappingError
from jaxcomet.optimize.ways import candidates


def _sentence(ours: dict[str, float], theirs: dict[str, float]) -> str:
    def amount(value: float) -> str:
        return f"{count(abs(value))} cycles"

    return _difference("a", "b", ours, theirs, amount, ("fewer", "more"))


def test_the_reason_names_what_shrank_and_what_grew_largest_first():
    text = _sentence({"CS": 10.0, "OS": 30.0}, {"CS": 70.0, "OS": 20.0, "CF": 10.0})
    # 40 against 100 cycles
    assert text == (
        "a takes 60 cycles fewer than b (60 %): CS -60 cycles, OS +10 cycles, CF -10 cycles."
    )


def test_small_parts_are_summed_so_that_the_reason_adds_up():
    ours = dict.fromkeys("pqrstu", 0.0)
    theirs = {"p": 100.0, "q": 50.0, "r": 20.0, "s": 10.0, "t": 2.0, "u": 1.0}
    assert _sentence(ours, theirs).endswith("s -10 cycles, 2 other parts -3 cycles.")


def test_a_best_that_is_slower_says_so():
    assert _sentence({"CS": 3.0}, {"CS": 2.0}).startswith("a takes 1 cycles more than b")


def test_equals_are_called_equal():
    assert _sentence({"CS": 3.0}, {"CS": 3.0}) == "a and b take the same."


def test_both_ways_to_hold_the_weights_are_tried_where_there_are_two():
    ways = {s.name: options for s, options in candidates("gemm-softmax", {"reduce": "tile"})}
    assert ways["unfused"] == ({},)
    assert ways["fused-distsm"] == ({"reduce": "tile"},)
    assert ways["fused-gemm-sm"] == ({"weights": "resident"}, {"weights": "streamed"})
    assert ways["fused-gemm-distsm"][1] == {"weights": "streamed", "reduce": "tile"}


def test_a_value_that_no_strategy_knows_is_refused():
    with pytest.raises(MappingError, match="rows or tile"):
        candidates("gemm-softmax", {"reduce": "row"})
