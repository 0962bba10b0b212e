"""LayerNorm-linear and RMSNorm-linear: strategies, meshes and dtypes against float64."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.extend.core import Literal, jaxprs_in_params
from jax.sharding import Mesh

from jaxcomet.kernels.compiled import collectives
from jaxcomet.kernels.devices import make_mesh
from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.layernorm_linear import (
    fold_layernorm,
    fold_rmsnorm,
    layernorm_linear,
    normalized_linear,
    reference,
    rmsnorm_linear,
)
from tests.kernels import harness
from tests.kernels.layernorm_linear_cases import (
    CONTRACTED,
    COTANGENT,
    MEAN,
    arguments,
    by_hand,
    expected,
    far_rows,
    named,
    narrow,
    normalized,
    relative_rms,
)
from tests.tolerance import assert_close

STRATEGIES = ("deferred", "centred", "serial")
DTYPES = harness.DTYPES
SPLITS: tuple[tuple[str | None, Any], ...] = (
    (None, None),
    ("1", None),
    ("2", "x"),
    ("4", {"n": "x"}),
    ("8", None),
    ("8", {"m": "x"}),
    ("2x4", None),
    ("2x4", {"m": "x", "k": "y"}),
    ("2x4", {"n": "x", "k": "y"}),
    ("2x4", {"k": "x", "m": "y"}),
    ("2x4", {"m": ("y", "x")}),
)
COVERING = (
    # strategy, dtype, mesh, reduction: each with each at least once, and nearly all pairs
    ("deferred", "float32", (None, None), "combined"),
    ("centred", "bfloat16", ("1", None), "combined"),
    ("serial", "float16", ("2", "x"), "separate"),
    ("centred", "float32", ("4", {"n": "x"}), "combined"),
    ("deferred", "bfloat16", ("8", None), "separate"),
    ("deferred", "float16", ("8", {"m": "x"}), "combined"),
    ("serial", "float32", ("2x4", None), "combined"),
    ("deferred", "bfloat16", ("2x4", {"m": "x", "k": "y"}), "combined"),
    ("serial", "bfloat16", ("2x4", {"n": "x", "k": "y"}), "combined"),
    ("centred", "float16", ("2x4", {"k": "x", "m": "y"}), "separate"),
)


def mesh_of(name: str | None) -> Mesh | None:
    return None if name is None else harness.mesh(name)


def check(strategy: str, dtype: str, split: tuple[str | None, Any], reduction: str) -> None:
    options = {"mesh": mesh_of(split[0]), "axis": split[1], "reduction": reduction}
    result, gradients = harness.value_and_gradients(
        functools.partial(layernorm_linear, strategy=strategy, **options),
        named(arguments(dtype)),
        COTANGENT,
        unoptimized=True,
    )
    # The product of raw rows is mean / deviation times what is left of it, with the accumulator's
    # error. Narrower dtypes have the same accumulator, so their own error hides it.
    amplified = MEAN if strategy == "deferred" and dtype == "float32" else 1
    value, derivatives = expected(dtype)
    assert result.dtype == dtype
    assert_close(result, value, dtype=dtype, length=CONTRACTED, amplified=amplified)
    for name, gradient in gradients.items():
        assert gradient.dtype == dtype, name
        assert_close(
            gradient, derivatives[name], dtype=dtype, length=CONTRACTED, amplified=amplified
        )


@pytest.mark.multi_device
@pytest.mark.parametrize(("strategy", "dtype", "split", "reduction"), COVERING)
def test_value_and_gradients_equal_float64(
    strategy: str, dtype: str, split: tuple[str | None, Any], reduction: str
) -> None:
    check(strategy, dtype, split, reduction)


@pytest.mark.slow
@pytest.mark.multi_device
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize(("strategy", "dtype"), list(itertools.product(STRATEGIES, DTYPES)))
def test_value_and_gradients_equal_float64_everywhere(
    strategy: str, dtype: str, split: tuple[str | None, Any]
) -> None:
    check(strategy, dtype, split, "combined")


@pytest.mark.multi_device
def test_automatic_partitioning_means_the_same() -> None:
    values = arguments("float32", shape=(16, 32, 8))
    options: dict[str, Any] = {"mesh": harness.mesh("2x4"), "axis": {"m": "x", "k": "y"}}
    automatic = layernorm_linear(*values, partitioner="auto", **options)
    manual = layernorm_linear(*values, strategy="serial", **options)
    assert_close(automatic, manual, dtype="float32", length=32)
    assert automatic.sharding.is_equivalent_to(manual.sharding, 2)


@pytest.mark.multi_device
@pytest.mark.parametrize(
    ("strategy", "mesh", "axis"),
    [("deferred", "8", None), ("serial", "2x4", {"m": "x", "k": "y"}), ("deferred", None, None)],
)
def test_rmsnorm_and_its_gradients_equal_float64(
    strategy: str, mesh: str | None, axis: Any
) -> None:
    values = named(arguments("bfloat16"))
    del values["bias"]
    options = {"strategy": strategy, "mesh": mesh_of(mesh), "axis": axis}
    function = functools.partial(rmsnorm_linear, **options)
    result, gradients = harness.value_and_gradients(function, values, COTANGENT, unoptimized=True)
    exact, derivatives = by_hand(values, COTANGENT, centred=False)
    assert_close(result, exact, dtype="bfloat16", length=CONTRACTED)
    for name, gradient in gradients.items():
        assert_close(gradient, derivatives[name], dtype="bfloat16", length=CONTRACTED)


# Rows far from 0


@pytest.mark.multi_device
@pytest.mark.parametrize(
    ("strategy", "mesh"), [("deferred", None), ("deferred", "4"), ("centred", "4")]
)
def test_bfloat16_rows_far_from_0_keep_their_digits(strategy: str, mesh: str | None) -> None:
    k, n, rows = 512, 64, 4
    x, ratios = far_rows(k, rows)
    np.testing.assert_allclose(ratios, [0.03, 1, 10, 100, 1000], rtol=0.1, atol=0.05)
    rng = np.random.default_rng(3)
    values = {
        "x": narrow(x),
        "scale": narrow(1 + 0.3 * rng.normal(size=k)),
        "weight": narrow(rng.normal(size=(k, n)) / np.sqrt(k)),
    }
    cotangent = narrow(rng.normal(size=(5 * rows, n)))
    function = functools.partial(layernorm_linear, bias=None, strategy=strategy, mesh=mesh_of(mesh))
    result, gradients = harness.value_and_gradients(function, values, cotangent, unoptimized=True)
    exact, derivatives = by_hand(values, cotangent)
    # Two roundings to bfloat16, of an operand and of the result, 1.66e-3 each (the root mean square
    # of a rounding error, relative), so 2.4e-3, at each distance. Without the sums of the stored
    # weight the last would be 1.6.
    error = relative_rms(result, exact)
    assert error.max() < 2.8e-3, error
    # No error that all of a row shares, as from a factor that was rounded to bfloat16.
    shared = (np.asarray(result, np.float64) * exact).sum() / (exact**2).sum() - 1
    assert abs(shared) < 5e-4
    # x.T @ g is 1000 times what is left of it; the derivative must not be rounded in between.
    for name, gradient in gradients.items():
        if name != "x":
            assert_close(gradient, derivatives[name], dtype="bfloat16", length=k)
    # Those of x are as large as 1 / deviation of the row.
    for block in np.arange(5 * rows).reshape(5, rows):
        one, other = np.asarray(gradients["x"], np.float64)[block], derivatives["x"][block]
        assert_close(one, other, dtype="bfloat16", length=k)


def test_folded_bfloat16_loses_one_rounding_at_any_distance() -> None:
    k, n, rows = 1024, 64, 8
    rng = np.random.default_rng(4)
    distances = np.repeat([0.0, 1, 10, 100, 1000], rows)[:, None]
    x = (rng.normal(size=(5 * rows, k)) + distances).astype(np.float32)
    weight = (rng.normal(size=(k, n)) / np.sqrt(k)).astype(np.float32)
    folded = fold_layernorm(None, None, jnp.asarray(weight), dtype=jnp.bfloat16)
    assert folded.weight.dtype == jnp.bfloat16
    result = normalized_linear(jnp.asarray(x), folded)
    error = relative_rms(result, normalized(x.astype(np.float64)) @ weight.astype(np.float64))
    # The rounding of the weight, 1.66e-3; in float32 at most 5e-4 more at the last distance.
    assert error.min() > 1.3e-3
    assert error.max() < 2.1e-3, error


# The folded form


@pytest.mark.parametrize("dtype", DTYPES)
def test_column_sums_are_those_of_the_stored_weight(dtype: str) -> None:
    _, scale, bias, weight, linear_bias = arguments("float32", shape=(1, 300, 7))
    fold = jax.jit(functools.partial(fold_layernorm, dtype=dtype))  # may not undo the rounding
    folded = fold(scale, bias, weight, linear_bias)
    stored = np.asarray(folded.weight, np.float64)
    wide = [np.asarray(value, np.float64) for value in (scale, bias, weight, linear_bias)]
    assert folded.weight.dtype == dtype
    assert folded.column_sum.dtype == folded.bias.dtype == jnp.float32
    np.testing.assert_allclose(folded.column_sum, stored.sum(axis=0), rtol=0, atol=1e-5)
    np.testing.assert_allclose(folded.bias, wide[1] @ wide[2] + wide[3], rtol=0, atol=1e-5)
    exact = wide[0][:, None] * wide[2]
    assert_close(folded.weight, exact, dtype=dtype, length=1)
    if dtype == "bfloat16":  # the exact sums would be another thing
        assert np.abs(stored.sum(axis=0) - exact.sum(axis=0)).max() > 1e-4


@pytest.mark.multi_device
@pytest.mark.parametrize(
    ("strategy", "mesh", "axis"),
    [
        ("deferred", None, None),
        ("deferred", "2x4", {"m": "x", "k": "y"}),
        ("centred", "2x4", {"n": "x", "k": "y"}),
    ],
)
def test_folded_form_gives_the_same(strategy: str, mesh: str | None, axis: Any) -> None:
    x, *parameters = arguments("float32")
    folded = fold_layernorm(*parameters)
    result = normalized_linear(x, folded, strategy=strategy, mesh=mesh_of(mesh), axis=axis)
    value, _ = expected("float32")
    # As above: the mean is left in the product.
    assert_close(result, value, dtype="float32", length=CONTRACTED, amplified=MEAN)


def test_folded_rmsnorm_gives_the_same() -> None:
    values = named(arguments("float16"))
    del values["bias"]
    x, scale, weight, linear_bias = values.values()
    folded = fold_rmsnorm(scale, weight, linear_bias)
    assert folded.column_sum is None
    result = normalized_linear(x, folded)
    exact, _ = by_hand(values, COTANGENT, centred=False)
    assert result.dtype == jnp.float16
    assert_close(result, exact, dtype="float16", length=CONTRACTED)
    assert fold_rmsnorm(None, weight).bias is None


# What moves

FOUR = (16, 32, 8)


def moved(strategy: str, axis: Any, **options: Any) -> list[tuple[str, str, int]]:
    values = arguments("float32", shape=FOUR)
    mesh = harness.mesh("4")
    run = jax.jit(
        lambda *values: layernorm_linear(
            *values, strategy=strategy, mesh=mesh, axis=axis, **options
        )
    )
    program = run.lower(*values).compile()
    return sorted((one.kind, one.dtype, one.bytes) for one in collectives(program))


M, _, N = FOUR
STATISTICS = ("all-gather", "f32", 4 * 2 * M * 4)  # 4 devices, mean and deviation of M rows
PRODUCT = ("reduce-scatter", "f32", M // 4 * N * 4)  # of which each keeps a quarter of the rows


@pytest.mark.multi_device
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        # column sums and bias, N each
        ("deferred", [STATISTICS, ("all-reduce", "f32", 2 * N * 4), PRODUCT]),
        # a shift a row and a column sum from 4 devices; the bias
        (
            "centred",
            [
                STATISTICS,
                ("all-gather", "f32", 4 * (M + N) * 4),
                ("all-reduce", "f32", N * 4),
                PRODUCT,
            ],
        ),
        ("serial", [STATISTICS, PRODUCT]),
    ],
)
def test_split_contraction_moves_products_once_and_statistics(
    strategy: str, expected: list[tuple[str, str, int]]
) -> None:
    assert moved(strategy, "x") == sorted(expected)


@pytest.mark.multi_device
def test_separate_statistics_are_two_sums() -> None:
    kinds = moved("deferred", "x", reduction="separate")
    # sizes and means, squares and what the mean missed, column sums and bias
    assert sum(size for kind, _, size in kinds if kind == "all-reduce") == (4 * M + 2 * N) * 4
    assert [one for one in kinds if one[0] != "all-reduce"] == [PRODUCT]


@pytest.mark.multi_device
@pytest.mark.parametrize(("strategy", "axis"), [("deferred", {"n": "x"}), ("centred", {"m": "x"})])
def test_split_rows_and_outputs_move_nothing(strategy: str, axis: Any) -> None:
    assert moved(strategy, axis) == []


COLLECTIVES = ("all_gather_invariant", "psum_invariant", "reduce_scatter")


def walk(jaxpr: Any, late: list[bool], seen: list[tuple[Any, ...]]) -> list[bool]:
    """Which results depend on a collective; notes collectives and large products on the way."""
    known = dict(zip(jaxpr.invars, late, strict=True))
    for eqn in jaxpr.eqns:
        inputs = [not isinstance(var, Literal) and known.get(var, False) for var in eqn.invars]
        name, inner = eqn.primitive.name, list(jaxprs_in_params(eqn.params))
        if inner and len(inner[0].invars) == len(inputs):
            outputs = walk(inner[0], inputs, seen)
        else:
            outputs = [name in COLLECTIVES or any(inputs)] * len(eqn.outvars)
            if name in COLLECTIVES or (
                name == "dot_general" and eqn.outvars[0].aval.shape == (M, N)
            ):
                seen.append((name, str(eqn.invars[0].aval.dtype), any(inputs)))
        known |= dict(zip(eqn.outvars, outputs, strict=True))
    return [not isinstance(var, Literal) and known.get(var, False) for var in jaxpr.outvars]


@pytest.mark.multi_device
@pytest.mark.parametrize(
    ("strategy", "late"), [("deferred", False), ("centred", False), ("serial", True)]
)
def test_product_of_the_deferred_forms_waits_for_nothing_and_travels_as_asked(
    strategy: str, late: bool
) -> None:
    # Before XLA, which sums bfloat16 in float32 on a CPU.
    options = {"strategy": strategy, "mesh": harness.mesh("4"), "wire_dtype": "bfloat16"}
    values = arguments("float32", shape=FOUR)
    jaxpr = jax.make_jaxpr(lambda *values: layernorm_linear(*values, **options))(*values)
    seen: list[tuple[Any, ...]] = []
    walk(jaxpr.jaxpr, [False] * len(values), seen)
    dtypes = {name: dtype for name, dtype, _ in seen}
    assert [waits for name, _, waits in seen if name == "dot_general"] == [late]
    assert dtypes.pop("reduce_scatter") == "bfloat16"
    assert set(dtypes.values()) == {"float32"}


# Transformations


@pytest.mark.multi_device
def test_second_call_with_new_values_compiles_nothing() -> None:
    values = arguments("float32")
    new = tuple(value + 1 for value in values)
    layernorm_linear(*values, mesh=make_mesh(2))
    with harness.compilations() as compiled:
        layernorm_linear(*new, mesh=make_mesh(2))
    assert compiled == []


@pytest.mark.multi_device
def test_layers_under_scan_remat_vmap_and_grad() -> None:
    x, weights = harness.normal((2, 3, 8)) + 1, harness.normal((2, 8, 8), seed=5) / 2

    def network(layer: Callable[..., Array]) -> Callable[..., Array]:
        def apply(x: Array, weights: Array) -> Array:
            step = jax.checkpoint(lambda x, weight: (layer(x, None, None, weight) + x, None))
            return jax.vmap(lambda x: jax.lax.scan(step, x, weights)[0])(x)

        return apply

    cotangent = harness.normal(x.shape, seed=1)
    values = {"x": x, "weights": weights}
    layer = functools.partial(layernorm_linear, mesh=harness.mesh("4"))
    actual = harness.value_and_gradients(network(layer), values, cotangent, unoptimized=True)
    exact = harness.reference(network(reference.layernorm_linear), values, cotangent)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(exact), strict=True):
        # Rows of mean / deviation up to 4, and two layers.
        assert_close(one, other, dtype="float32", length=8, amplified=8)


@pytest.mark.multi_device
def test_gradient_outside_jit_with_weights_closed_over_equals_float64() -> None:
    values = arguments("float32")
    mesh = harness.mesh("4")

    @jax.grad
    def gradient(x: Array) -> Array:
        return (layernorm_linear(x, *values[1:], mesh=mesh) * COTANGENT).sum()

    assert_close(
        gradient(values[0]),
        expected("float32")[1]["x"],
        dtype="float32",
        length=CONTRACTED,
        amplified=MEAN,
    )


def test_forward_mode_is_the_transpose_of_reverse_mode() -> None:
    values = arguments("float32")
    tangents = tuple(jnp.cos(value) for value in values)
    _, tangent = jax.jit(lambda *pair: jax.jvp(layernorm_linear, *pair))(values, tangents)
    _, gradients = expected("float32")
    along = sum(
        (gradients[name] * np.asarray(tangent)).sum() for name, tangent in named(tangents).items()
    )
    np.testing.assert_allclose((tangent * COTANGENT).sum(), along, rtol=1e-4)


# Reported failures of other implementations


def by_identity(x: Any, strategy: str, mesh: Any = None, **options: Any) -> np.ndarray:
    """The normalized rows, by a linear layer that does nothing."""
    x = jnp.asarray(x)
    weight = jnp.eye(x.shape[-1], dtype=x.dtype)
    result = layernorm_linear(x, None, None, weight, strategy=strategy, mesh=mesh, **options)
    return np.asarray(result, np.float64)


@pytest.mark.multi_device
@pytest.mark.parametrize(
    ("strategy", "mesh"), [("deferred", "4"), ("centred", "4"), ("serial", "2"), ("centred", None)]
)
def test_rows_of_reported_failures(strategy: str, mesh: str | None) -> None:
    rows = [
        [40000.0, 40001, 40002, 40003],  # onnxruntime 28463, tvm 19643: NaN
        [2000.1, 2001.3, 1999.2, 2000.6],  # pytorch 51102
        [1234.0] * 4,  # onnxruntime 21935: NaN
        [1e30, -1e30, 2e30, 0],  # pytorch 162489: 0 or NaN
        [1e20, 2e20, 3e20, 4e20],  # tt-metal 55159: 0 or inf
        [1, 2, 4, 9],
        [np.nan, 2, 4, 9],  # spoils no other row
        [np.inf, 2, 4, 9],
    ]
    result = by_identity(rows, strategy, mesh_of(mesh))
    assert np.isnan(result[6:]).all()
    result, rows = result[:6], rows[:6]
    exact = normalized(np.asarray(rows, np.float32).astype(np.float64))
    np.testing.assert_allclose(exact[0], [-1.34164, -0.44721, 0.44721, 1.34164], atol=1e-5)
    np.testing.assert_allclose(exact[3], [0.4472, -1.3416, 1.3416, -0.4472], atol=1e-4)
    # Of a row's raw product the mean is what cancels: in `deferred` its rounding error is left, in
    # units of sqrt(variance + epsilon), 1e-3 for the constant row.
    # The mean itself, rounded to float32, is what `serial` takes off.
    deviations = np.sqrt(np.asarray(rows, np.float64).var(axis=1) + 1e-6)
    distances = np.abs(np.mean(rows, axis=1)) / deviations
    lost = {"deferred": 4, "serial": 1, "centred": 0}[strategy] * distances
    allowed = 2.0**-24 * (16 + lost)
    assert (np.abs(result - exact).max(axis=1) <= allowed).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_float16_rows_stay_in_range(strategy: str) -> None:
    # epsilon is 0 in float16 (pytorch 41527); differences and products overflow it
    rows = jnp.asarray(
        [[0.0] * 4, [-65504, 65504, 65504, 65504], [300, 300, 301, 301]], jnp.float16
    )
    result = by_identity(rows, strategy, epsilon=1e-12)
    assert_close(
        result[1:], normalized(np.asarray(rows[1:], np.float64)), dtype="float16", length=4
    )
    np.testing.assert_array_equal(result[0], 0)
    weight = jnp.full((4, 1), 200, jnp.float16)  # x @ weight is 5e7, the result 0
    product = layernorm_linear(rows[1:2], None, None, weight, strategy=strategy)
    # In `serial` the four rows of size 1 have been rounded.
    assert abs(product.item()) <= (200 * 4 * 2.0**-11 if strategy == "serial" else 0)


def test_float16_mean_squares_stay_in_range() -> None:
    x = jnp.full((8, 300), 300, jnp.float16)  # onnxruntime 29034: squares overflow, 0
    weight = jnp.eye(300, 2, dtype=jnp.float16)
    np.testing.assert_array_equal(rmsnorm_linear(x, None, weight), 1)


@pytest.mark.multi_device
@pytest.mark.parametrize("strategy", ["deferred", "centred"])
def test_padding_is_not_counted(strategy: str) -> None:
    # triton 9838: the variance of [1, 2, 4] is 1.5556, not that of [1, 2, 4, 0]
    result = by_identity([[1.0, 2, 4]], strategy, harness.mesh("8"))
    np.testing.assert_allclose(result, (np.array([[1, 2, 4]]) - 7 / 3) / np.sqrt(1.5556), atol=1e-4)


@pytest.mark.multi_device
def test_weight_gradient_is_summed_wide_over_devices() -> None:
    # Liger-Kernel PR 950. Rows of 1 have 1 as normalized value, so the gradient is the sum of the
    # cotangents: 257 on seven devices, 258 on the last. In bfloat16, which has no 257, the parts
    # would be 256 and make 2050, then 2048; the sum 2057 is 2064.
    cotangent = np.ones((8, 256), np.float32)
    cotangent[:, 0] = [2] * 7 + [3]
    cotangent = cotangent.reshape(-1, 1)
    x = jnp.ones((2048, 1), jnp.bfloat16)

    @jax.jit
    @jax.grad
    def gradient(weight: Array) -> Array:
        result = rmsnorm_linear(x, None, weight, mesh=harness.mesh("8"), axis={"m": "x"})
        return (result * cotangent).sum()

    assert gradient(jnp.ones((1, 1), jnp.bfloat16)) == 2064


def test_leading_axes_and_single_rows_are_rows() -> None:
    values = arguments("float32", shape=(12, 8, 5))
    exact, _ = by_hand(named(values), np.zeros((12, 5)))
    for shape, rows in (((2, 3, 2), slice(None)), ((), 0)):
        result = layernorm_linear(values[0][rows].reshape(*shape, 8), *values[1:])
        other = exact[rows].reshape(*shape, 5)
        assert_close(result, other, dtype="float32", length=8, amplified=MEAN)


@pytest.mark.parametrize("strategy", ["deferred", "serial"])
def test_mixed_dtypes_are_computed_in_the_wider(strategy: str) -> None:
    x, *_ = arguments("bfloat16")
    _, *parameters = arguments("float32")
    result = layernorm_linear(x, *parameters, strategy=strategy)
    exact, _ = by_hand(named((x, *parameters)), COTANGENT)
    assert result.dtype == jnp.float32
    dtype = "float32" if strategy == "deferred" else "bfloat16"  # the others round rows to x's
    assert_close(result, exact, dtype=dtype, length=CONTRACTED, amplified=MEAN)


# Refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": jnp.ones((3, 5))}, r"got 5 for x axis 1 \(k\), 4 for weight axis 0 \(k\)"),
        ({"x": jnp.ones((3, 4), int)}, "x: got dtype int32; expected a floating-point dtype"),
        ({"x": jnp.ones((0, 4))}, r"x: got shape \(0, 4\), axis 0 of size 0"),
        ({"weight": jnp.ones(4)}, r"weight: got shape \(4,\); expected \[k, n\]"),
        ({"scale": jnp.ones(3)}, r"got 3 for scale axis 0 \(k\), 4 for weight \(k\)"),
        ({"bias": jnp.ones((4, 1))}, r"bias: got shape \(4, 1\); expected \[k\]"),
        ({"linear_bias": jnp.ones(4)}, r"got 4 for linear_bias axis 0 \(n\), 2 for weight \(n\)"),
        ({"epsilon": 0.0}, "epsilon: got 0.0; expected at least 1e-30"),
        ({"strategy": "fused"}, "strategy: got 'fused'; expected deferred or centred or serial"),
        ({"partitioner": "gspmd"}, "partitioner: got 'gspmd'"),
        ({"reduction": "ring"}, "reduction: got 'ring'; expected combined or separate"),
        ({"axis": "x"}, "axis: got 'x' without a mesh"),
    ],
)
def test_arguments_that_do_not_fit_are_named(options: dict[str, Any], message: str) -> None:
    given = {"x": jnp.ones((3, 4)), "scale": None, "bias": None, "weight": jnp.ones((4, 2))}
    with pytest.raises(KernelError, match=f"^layernorm_linear: {message}"):
        layernorm_linear(**(given | options))


def test_rmsnorm_and_folded_forms_refuse_what_they_cannot_do() -> None:
    x, weight = jnp.ones((3, 4)), jnp.ones((4, 2))
    with pytest.raises(KernelError, match="strategy: got 'centred'; expected deferred or serial"):
        rmsnorm_linear(x, None, weight, strategy="centred")
    with pytest.raises(KernelError, match=r"strategy: got 'centred'; expected deferred$"):
        normalized_linear(x, fold_rmsnorm(None, weight), strategy="centred")
    with pytest.raises(KernelError, match=r"fold_layernorm: got 3 for scale axis 0 \(k\)"):
        fold_layernorm(jnp.ones(3), None, weight)
