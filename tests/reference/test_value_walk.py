"""Every strategy's mappings run on the identity of their values; trees that are wrong do not."""

from functools import cache

import pytest

from jaxcomet.mapping import Mapping
from tests.reference import agreement, illegal, value_walk
from tests.reference.illegal import Example

OFFERED = agreement.offered()


@cache
def _run(softmax: int, others: int) -> dict[tuple[str, str], tuple[int, list[str], list[str]]]:
    """All strategies, so many mappings of each for GEMM-softmax and for the others."""
    arguments = [(b, s, softmax if b == "gemm_softmax" else others, 5) for b, s in OFFERED]
    return dict(zip(OFFERED, agreement.apart(agreement.values, arguments), strict=True))


@pytest.mark.parametrize(
    ("softmax", "others"), [(30, 6), pytest.param(250, 30, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("builder", "strategy"), OFFERED)
def test_every_value_is_complete_where_it_is_read_and_fits(
    builder: str, strategy: str, softmax: int, others: int
):
    # also: the bytes alive at once are no more than the model says that the memory needs
    count, faults, _ = _run(softmax, others)[builder, strategy]
    assert count > 0
    assert not faults, "\n".join(faults[:5])


def test_the_released_exchange_adds_different_columns():
    # docs/strategies.md, option reduce=tile: priced as stated, wrong in its values
    faults = _run(30, 6)["gemm_softmax", "fused-gemm-distsm"][2]
    assert any("all_reduce between gb combines different elements of F" in f for f in faults)


@pytest.mark.parametrize("example", illegal.ILLEGAL, ids=lambda e: e.name)
def test_an_illegal_tree_has_its_one_violation(example: Example):
    run = value_walk.execute(example.workload, example.mapping(), example.machine)
    assert example.fault is not None
    operation, tensor = example.fault
    (violation,) = run.violations
    assert violation.startswith(f"{operation} reads {tensor}[0] in ob")


@pytest.mark.parametrize("example", illegal.LEGAL, ids=lambda e: e.name)
def test_the_legal_tree_beside_it_has_none(example: Example):
    mapping = Mapping.from_factors(
        example.workload,
        strategy=example.name,
        tree=example.tree,
        homes=illegal.HOMES,
        factors=example.factors,
    )
    assert not value_walk.execute(example.workload, mapping, example.machine).violations


def test_bytes_alive_are_counted_from_maker_to_last_use():
    # One core holds C and F (3 x 8) and D (3), 2 bytes each. An element of C is last read, and one
    # of F made, by the exponential, 2 elements a call. While call i runs, 2 i elements of F are
    # there, that call's with them, and 24 - 2 (i - 1) of C: 26 together, with D 29.
    example = illegal.LEGAL[2]
    live = value_walk.execute(example.workload, example.mapping(), example.machine).live_bytes
    assert live == {"ob": 29 * 2}
