"""Mapping trees: their factors, and how factors cover a bound."""

import itertools
import math

import jax
import numpy as np
import pytest

from jaxcomet import MappingError, gemm_softmax, strategies
from jaxcomet.hardware import load
from jaxcomet.mapping import (
    Compute,
    Group,
    Loop,
    Mapping,
    Spatial,
    Temporal,
    computes,
    describe,
    factor_chain,
    factor_names,
    walk,
)
from jaxcomet.workload import CompoundOp, Operation, Tensor, build


def _copy(size: int) -> CompoundOp:
    return build(
        "copy",
        operations=(
            Operation(name="copy", kind="map", function="add", inputs=("X",), output="Y", bits=8),
        ),
        tensors=(Tensor(name="X", dims=("N",), bits=8), Tensor(name="Y", dims=("N",), bits=8)),
        sizes={"N": size},
    )


TREE = Temporal(
    "dram",
    (Loop("N", ("a",)),),
    Spatial(
        "gb",
        (Loop("N", ("b",)),),
        (),
        Temporal("gb", (Loop("N", ("c", "d")),), Compute("copy", (Loop("N", ("e",)),))),
    ),
)


def _mapping(size: int, **factors: object) -> Mapping:
    return Mapping.from_factors(_copy(size), strategy="s", tree=TREE, homes={}, factors=factors)


def test_names_and_chains_are_outermost_first():
    assert factor_names(TREE) == ("a", "b", "c", "d", "e")
    assert factor_chain(TREE, "copy", "N") == ("a", "b", "c", "d", "e")
    with pytest.raises(MappingError, match=r"runs no operation 'gemm'; it runs \['copy'\]"):
        factor_chain(TREE, "gemm", "N")


def test_walk_gives_ancestors():
    found = [(type(n).__name__, len(above)) for n, above in walk(Group((TREE, TREE)))]
    one = [("Temporal", 1), ("Spatial", 2), ("Temporal", 3), ("Compute", 4)]
    assert found == [("Group", 0), *one, *one]
    assert [c.operation for c in computes(Group((TREE, TREE)))] == ["copy", "copy"]


def test_factors_left_out_are_one_and_are_leaves():
    mapping = _mapping(6, c=3, e=2)
    assert mapping.factors == {"a": 1.0, "b": 1.0, "c": 3.0, "d": 1.0, "e": 2.0}
    assert len(jax.tree.leaves(mapping)) == 5
    assert mapping.home("X", "dram") == "dram"


def test_exactly_the_covers_without_empty_steps_are_accepted():
    # brute force: steps outermost first; each index of each loop must have an element somewhere
    for size in (1, 5, 6, 7):
        for values in itertools.product((1, 2, 3), repeat=5):
            factors = dict(zip("abcde", values, strict=True))
            covered = math.prod(values)
            positions = itertools.islice(itertools.product(*map(range, values)), size)
            used = [set(column) for column in zip(*positions, strict=True)]
            # an outer loop's step is empty if no element has its index
            good = covered >= size and all(len(u) == v for u, v in zip(used, values, strict=True))
            try:
                _mapping(size, **factors)
            except MappingError:
                assert not good, (size, values)
            else:
                assert good, (size, values)


def test_messages_say_what_to_do():
    with pytest.raises(MappingError) as error:
        _mapping(7, a=2, e=3)
    assert str(error.value) == (
        "dimension N of copy: factors a=2 x b=1 x c=1 x d=1 x e=3 multiply to 6; "
        "expected at least 7 "
        "[strategy s]"
    )
    with pytest.raises(MappingError) as error:
        _mapping(7, a=4, e=3)
    assert "factor a: got 4 steps, the last ones with nothing to do; expected at most 3" in str(
        error.value
    )
    with pytest.raises(MappingError) as error:
        _mapping(7, aa=2)
    assert "factor aa: unknown for strategy s; did you mean a" in str(error.value)


def test_batches_name_the_row():
    batch = _mapping(7, a=np.array([7, 4, 1]), e=np.array([1, 2, 7]))
    assert np.array_equal(batch.factors["a"], [7, 4, 1])
    with pytest.raises(MappingError, match=r"dimension N of copy in row 2: .* multiply to 6"):
        _mapping(7, a=np.array([7, 3, 1]), e=np.array([1, 2, 7]))
    with pytest.raises(MappingError, match=r"factor a: got 2.5 in row 3"):
        _mapping(7, a=np.array([7, 4, 2.5]), e=np.array([1, 2, 7]))
    with pytest.raises(MappingError, match=r"factor a in row 2: got 9 steps"):
        _mapping(7, a=np.array([7, 9]))


def test_shapes_may_be_batched_with_their_factors():
    workload = gemm_softmax(np.array([1, 4]), np.array([16, 64]), 8)
    factors = {"M_comp": np.array([1, 4]), "N_comp": np.array([16, 64]), "K_comp": 8}
    mapping = strategies.build(workload, load("edge"), "fused-gemm-distsm", factors)
    assert np.array_equal(mapping.factors["N_comp"], [16, 64])
    with pytest.raises(MappingError, match=r"dimension N of gemm in row 2: .*multiply to 16"):
        strategies.build(workload, load("edge"), "fused-gemm-distsm", {**factors, "N_comp": 16})


def test_traced_factors_are_taken_as_they_are():
    def steps(a: jax.Array) -> jax.Array:
        return Mapping.from_factors(
            _copy(7), strategy="s", tree=TREE, homes={}, factors={"a": a, "e": 7}
        ).factors["a"]  # pyright: ignore[reportReturnType]

    assert jax.jit(steps)(2.0) == 2.0


def test_a_tree_is_static_and_hashable():
    one, two = _mapping(6, c=3, e=2), _mapping(6, a=6)
    assert jax.tree.structure(one) == jax.tree.structure(two)
    assert hash(one.tree) == hash(two.tree)


def test_describe_shows_the_nest():
    text = describe(TREE, {"a": 2.0, "b": 2.0, "c": 3.0, "d": 1.0, "e": 4.0})
    assert text.splitlines() == [
        "dram: for N in 2",
        "  spread over gb units: x: N in 2",
        "    gb: for N in 3",
        "      copy on a tile of N 4",
    ]


@pytest.mark.parametrize("name", ["unfused", "fused-distsm", "fused-gemm-sm", "fused-gemm-distsm"])
@pytest.mark.parametrize("machine", ["edge", "cloud"])
def test_every_strategy_runs_all_six_operations_once(name: str, machine: str):
    strategy = strategies.get("gemm-softmax", name)
    shaping = {n: v for n, v in strategy.options.items() if n != "algorithm"}
    for values in itertools.product(*shaping.values()):
        options = dict(zip(shaping, values, strict=True))
        plan = strategy.planned(gemm_softmax(1, 1, 1), load(machine), **options)
        tree, homes = plan.tree, plan.homes
        assert [c.operation for c in computes(tree)] == [
            "gemm",
            "rowmax",
            "sub",
            "exp",
            "rowsum",
            "div",
        ]
        assert set(homes) <= set("CDEFG")
        again = strategy.planned(gemm_softmax(1, 1, 1), load(machine), **options)
        assert hash(tree) == hash(again.tree)
