"""Time of engine calls, by hand: kinds of arrays and of row reductions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomet.arith import minimum, per, times_rate
from jaxcomet.cost import conventions
from jaxcomet.cost.compute import array_cycles, reduction_steps, vector_op
from jaxcomet.hardware import MatrixEngine, VectorEngine, load
from jaxcomet.workload import Operation

PRESETS = ("default", "comet-program", "roofline")


def _array(name: str, **changes: object) -> MatrixEngine:
    engine = load(name).engines["gemm"]
    assert isinstance(engine, MatrixEngine)
    return dataclasses.replace(engine, **changes)  # pyright: ignore[reportArgumentType]


def _lanes(name: str, **changes: object) -> VectorEngine:
    engine = load(name).engines["simd"]
    assert isinstance(engine, VectorEngine)
    return dataclasses.replace(engine, **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["r2", "r2w", "r2v"])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("m", "k", "n", "cycles"),
    [
        (256.0, 32.0, 32.0, 256.0),
        (256.0, 64.0, 32.0, 512.0),  # 2 folds along the 32 rows
        (256.0, 64.0, 96.0, 1536.0),  # 2 x 3 folds
        (1.0, 1.0, 1.0, 1.0),
        (7.0, 33.0, 32.0, 14.0),  # the second fold has 1 row of weights
    ],
)
def test_a_broadcast_array_streams_a_row_a_cycle(
    name: str, preset: str, m: float, k: float, n: float, cycles: float
):
    assert array_cycles(_array(name), m, k, n, conventions(preset)) == cycles


@pytest.mark.parametrize("weight_load", ["exposed", "hidden"])
@pytest.mark.parametrize("array_skew", ["counted", "ignored"])
def test_a_broadcast_array_knows_neither_loading_nor_skew(weight_load: str, array_skew: str):
    rules = conventions(weight_load=weight_load, array_skew=array_skew)
    assert array_cycles(_array("r2"), 256.0, 64.0, 32.0, rules) == 512.0


@pytest.mark.parametrize(
    ("options", "cycles"),
    [
        ({}, 2 * (2 * 32 + 32 + 256 - 2)),
        ({"array_skew": "ignored"}, 2 * (32 + 256)),
        # R = 32 first weights, then 2 folds of 256 + 62, behind which the others load
        ({"weight_load": "hidden"}, 32 + 2 * (256 + 62)),
    ],
)
def test_a_systolic_array_fills_and_drains(options: dict[str, str], cycles: int):
    engine = _array("r2", array="systolic")
    assert array_cycles(engine, 256.0, 64.0, 32.0, conventions(**options)) == cycles


def test_systolic_is_what_an_engine_is_unless_said_otherwise():
    given = {f.name: getattr(_array("edge"), f.name) for f in dataclasses.fields(MatrixEngine)}
    rest = {k: v for k, v in given.items() if k not in ("array", "weight_registers")}
    assert MatrixEngine(**rest) == _array("edge")


def test_rows_reduced_in_lanes_take_one_operation_an_element():
    engine = _lanes("r2v")
    total = Operation(name="sum", kind="reduce", function="add", inputs=("X",), output="S", bits=8)
    cycles, energy = vector_op(engine, total)
    # 512 elements on 64 lanes: 8 instructions of 1 cycle, 512 operations of 1 pJ
    assert (cycles * 512 / 64, energy * 512) == (8.0, 512.0)
    # the same lanes as a tree: log2 64 = 6 steps
    assert vector_op(dataclasses.replace(engine, row_reduction="tree"), total) == (6.0, 6.0)


def test_a_map_is_the_same_in_both():
    op = Operation(name="exp", kind="map", function="exp", inputs=("X",), output="Y", bits=8)
    for kind in ("tree", "lanes"):
        assert vector_op(_lanes("edge", row_reduction=kind), op) == (3.0, 3.86)


def test_the_steps_of_traced_lanes():
    tree, lanes = _lanes("edge"), _lanes("edge", row_reduction="lanes")
    assert reduction_steps(tree) == float(jax.jit(reduction_steps)(tree)) == 4.0
    assert reduction_steps(lanes) == float(jax.jit(reduction_steps)(lanes)) == 1.0


# Unlimited rates


def test_what_passes_an_unlimited_rate_takes_no_time():
    assert per(5.0, np.inf) == 0.0
    assert jax.grad(lambda x, r: per(x, r), argnums=(0, 1))(5.0, jnp.inf) == (0.0, 0.0)


@pytest.mark.parametrize("rate", [2.0, np.inf])
@pytest.mark.parametrize("other", [3.0, 1e9, np.inf])
def test_a_count_of_unlimited_rates_has_a_finite_gradient(rate: float, other: float):
    def time(count: jax.Array, rate: jax.Array, other: jax.Array) -> jax.Array:
        return jnp.asarray(per(100.0, minimum(times_rate(count, rate), other)))

    expected = 100.0 / min(4.0 * rate, other)
    assert time(4.0, rate, other) == pytest.approx(expected)  # pyright: ignore[reportArgumentType]
    slopes = jax.grad(time, argnums=(0, 1, 2))(4.0, rate, other)
    assert np.all(np.isfinite(slopes))
    if np.isinf(rate):
        assert slopes[:2] == (0.0, 0.0)
