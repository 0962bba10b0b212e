"""Softmax over rows that are split over devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from jaxcomet.kernels.compiled import collectives
from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.softmax import distributed_softmax
from jaxcomet.kernels.softmax import reference as plain
from jaxcomet.kernels.statistics import REDUCTIONS
from tests.kernels import harness
from tests.tolerance import assert_close

SPLITS = [
    ("1", {"n": "x"}),
    ("2", {"n": "x"}),
    ("4", {"n": "x"}),
    ("8", {"n": "x"}),
    ("2x4", {"m": "x", "n": "y"}),
    ("2x4", {"n": ("x", "y")}),
]


def test_reference_gives_softmax_worked_out_by_hand():
    # exp(log 1), exp(log 2), exp(log 5) = 1, 2, 5 of 8
    row = jnp.log(jnp.array([1.0, 2.0, 5.0]))
    np.testing.assert_allclose(plain.softmax(row), [0.125, 0.25, 0.625], rtol=1e-6)


def test_reference_agrees_with_numpy_in_float64():
    x = np.random.default_rng(1).normal(size=(7, 33)) * 20
    exact = np.exp(x - x.max(-1, keepdims=True))
    exact /= exact.sum(-1, keepdims=True)
    with harness.enable_x64():
        np.testing.assert_allclose(plain.softmax(jnp.asarray(x)), exact, rtol=1e-14)


SOME = [
    ("8", {"n": "x"}, "bfloat16", "combined"),
    ("2x4", {"n": ("x", "y")}, "float32", "separate"),
]
EVERY = [
    pytest.param(mesh, axis, dtype, reduction, marks=pytest.mark.slow)
    for mesh, axis in SPLITS
    for dtype in harness.DTYPES
    for reduction in REDUCTIONS
    if (mesh, axis, dtype, reduction) not in SOME
]


@pytest.mark.parametrize(("mesh", "axis", "dtype", "reduction"), [*SOME, *EVERY], ids=str)
def test_value_and_gradient_equal_the_reference(mesh, axis, dtype, reduction):
    x = harness.normal((5, 21), dtype) * 4
    x = x.at[1, :6].set(-jnp.inf)  # all that the first devices hold of this row
    cotangent = harness.normal((5, 21), seed=1)
    value, gradients = harness.value_and_gradients(
        lambda x: distributed_softmax(x, mesh=harness.mesh(mesh), axis=axis, reduction=reduction),
        {"x": x},
        cotangent,
        unoptimized=True,
    )
    expected, slopes = harness.reference(plain.softmax, {"x": x}, cotangent)
    assert value.dtype == x.dtype
    assert_close(value, expected, dtype=dtype, length=21)
    assert_close(gradients["x"], slopes["x"], dtype=dtype, length=21)


EDGES = {
    # [1, 1, 100] with the last hidden (jax issue 17117)
    "hidden-large": ([1.0, 1.0, 100.0], [True, True, False], [0.5, 0.5, 0]),
    "hidden-nan": ([1.0, 1.0, np.nan], [True, True, False], [0.5, 0.5, 0]),
    "hidden-inf": ([1.0, 1.0, np.inf], [True, True, False], [0.5, 0.5, 0]),
    "nothing-visible": ([1.0, 2.0, 3.0], [False] * 3, [0, 0, 0]),
    "all-minus-inf": ([-np.inf] * 3, [True] * 3, [0, 0, 0]),
    # far below 0: a running maximum that starts at 0 loses the row (flash-attention issue 2082)
    "all-very-small": ([-200.0, -201.0, -np.inf], [True] * 3, [0.7310586, 0.26894143, 0]),
    # without a maximum this is inf / inf (DeepLearningExamples issue 169)
    "very-large": ([1000.0, 1000.0, 999.0], [True] * 3, [0.4223188, 0.4223188, 0.15536241]),
}


@pytest.mark.parametrize(
    ("mesh", "reduction"),
    [(None, "combined"), ("2", "combined"), ("8", "combined"), ("8", "separate")],
)
def test_empty_rows_and_hidden_elements(mesh, reduction):
    """Each row by hand, all in one array: none disturbs another, in value or in gradient."""
    x = jnp.array([row for row, _, _ in EDGES.values()])
    where = jnp.array([visible for _, visible, _ in EDGES.values()])
    devices = harness.mesh(mesh) if mesh else None
    value, gradients = harness.value_and_gradients(
        lambda x: distributed_softmax(x, where, mesh=devices, reduction=reduction),
        {"x": x},
        jnp.ones_like(x),
    )
    np.testing.assert_allclose(value, [row for _, _, row in EDGES.values()], rtol=1e-6)
    # the sum of a softmax is constant, so its gradient is 0 everywhere
    np.testing.assert_allclose(gradients["x"], np.zeros_like(x), atol=1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("mesh", [None, "8"])
def test_nan_and_inf_make_nan_of_their_row_alone(mesh, bad):
    x = jnp.zeros((3, 16)).at[1, 5].set(bad)
    value = distributed_softmax(x, mesh=harness.mesh(mesh) if mesh else None)
    assert np.isnan(value[1]).all()
    np.testing.assert_array_equal(value[jnp.array([0, 2])], np.full((2, 16), 1 / 16))


@pytest.mark.parametrize(("dtype", "n"), [("float16", 4096), ("bfloat16", 512)])
def test_equal_narrow_logits_keep_their_sum(dtype, n):
    # a sum in the narrow dtype sticks at 2048 or 256 (candle issue 3727, executorch PR 20090)
    value = distributed_softmax(jnp.zeros((1, n), dtype), mesh=harness.mesh("8"))
    np.testing.assert_array_equal(value.astype("float32"), np.full((1, n), 1 / n))


def _compiled(x: Array, **options):
    return jax.jit(lambda x: distributed_softmax(x, **options)).lower(x).compile()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # 8 devices x (maximum, sum) x 64 rows, of 4 bytes and of 2
        ({}, [("all-gather", 8 * 2 * 64 * 4)]),
        ({"wire_dtype": "float16"}, [("all-gather", 8 * 2 * 64 * 2)]),
        # 64 maxima, 64 sums
        ({"reduction": "separate"}, [("all-reduce", 64 * 4), ("all-reduce", 64 * 4)]),
        ({"axis": {"m": "x"}}, []),
    ],
    ids=str,
)
def test_what_moves_is_two_numbers_a_row(options, expected):
    options = {"axis": {"n": "x"}, **options}
    compiled = _compiled(harness.normal((64, 128)), mesh=harness.mesh("8"), **options)
    assert [(each.kind, each.bytes) for each in collectives(compiled)] == expected


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_narrow_wire_rounds_the_sum_alone(reduction):
    x = harness.normal((16, 64)) * 50  # maxima that bfloat16 cannot hold
    value = distributed_softmax(
        x, mesh=harness.mesh("8"), reduction=reduction, wire_dtype="bfloat16"
    )
    expected, _ = harness.reference(plain.softmax, {"x": x}, jnp.ones_like(x))
    assert_close(value, expected, dtype="bfloat16", length=64)


def test_automatic_form_gives_the_same():
    x = harness.normal((16, 64))
    expected, _ = harness.reference(plain.softmax, {"x": x}, jnp.ones_like(x))
    value = distributed_softmax(x, mesh=harness.mesh("8"), partitioner="auto")
    assert_close(value, expected, dtype="float32", length=64)


BAD = {
    "rank": (dict(x=jnp.float32(1)), "x: got shape (); expected [..., n]"),
    "empty": (dict(x=jnp.zeros((3, 0))), "x: got shape (3, 0), axis 1 of size 0"),
    "dtype": (dict(x=jnp.zeros(3, "int32")), "x: got dtype int32; expected a floating-point"),
    "mask-dtype": (dict(x=jnp.zeros(3), where=jnp.zeros(3)), "where: got float32 of shape (3,)"),
    "mask-shape": (
        dict(x=jnp.zeros((4, 3)), where=jnp.zeros((3, 4), bool)),
        "where: got bool of shape (3, 4); expected booleans",
    ),
    "reduction": (dict(x=jnp.zeros(3), reduction="tree"), "expected combined or separate"),
    "partitioner": (dict(x=jnp.zeros(3), partitioner="pjit"), "expected shard_map or auto"),
    "axis-alone": (dict(x=jnp.zeros(3), axis="x"), "axis: got 'x' without a mesh"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_with_one_message(case):
    arguments, message = BAD[case]
    with pytest.raises(KernelError) as error:
        distributed_softmax(**arguments)
    assert str(error.value).startswith("distributed_softmax: ")
    assert message in str(error.value)
