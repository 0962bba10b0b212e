"""LayerNorm-linear and RMSNorm-linear: strategies, meshes and dtypes against float64."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.extend.core import Literal, jaxprs_in_params
from jax.sharding import Mesh

from jaxcomet.kernels.compiled import collectives
from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.layernorm_linear import (
    fold_layernorm,
    fold_rmsnorm,
    layernorm_linear,
    normalized_linear,
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
    unoptimized,
)
from tests.tolerance import assert_close

STRATEGIES = ("deferred", "centred", "serial")
DTYPES = harness.DTYPES
SPLITS: tuple[tuple[str | None, Any], ...] = (
    ("1", None),
    ("2", "x"),
    ("4", {"n": "x"}),
    ("8", {"m": "x"}),
    ("2x4", {"m": "x", "k": "y"}),
)
MORE_SPLITS: tuple[tuple[str | None, Any], ...] = (
    (None, None),
    ("2x4", None),
    ("2x4", {"n": "x", "k": "y"}),
    ("2x4", {"k": "x", "m": "y"}),
    ("2x4", {"m": ("y", "x")}),
)
EVERYWHERE = (
    *itertools.product(STRATEGIES, DTYPES, SPLITS),
    *itertools.product(STRATEGIES, ["float32"], MORE_SPLITS),
)
COVERING = (
    # strategy, dtype, split, reduction: each at least once, but for what other tests have:
    # `deferred` in float32 on 8 devices and in bfloat16 on 4
    ("centred", "bfloat16", ("1", None), "combined"),
    ("serial", "float16", ("2", "x"), "separate"),
    ("deferred", "float16", ("2x4", {"m": "x", "k": "y"}), "separate"),
    ("serial", "bfloat16", ("2x4", {"n": "x", "k": "y"}), "combined"),
    ("centred", "float32", ("2x4", {"k": "x", "m": "y"}), "separate"),
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
@pytest.mark.parametrize(("strategy", "dtype", "split"), EVERYWHERE, ids=str)
def test_value_and_gradients_equal_float64_everywhere(
    strategy: str, dtype: str, split: tuple[str | None, Any]
) -> None:
    check(strategy, dtype, split, "combined")


@pytest.mark.multi_device
def test_automatic_partitioning_means_the_same() -> None:
    values = arguments("float32", shape=(16, 32, 8))
    options: dict[str, Any] = {"mesh": harness.mesh("2x4"), "axis": {"m": "x", "k": "y"}}

    @unoptimized
    def both(*values: Array) -> list[Array]:
        choices: list[dict[str, Any]] = [{"partitioner": "auto"}, {"strategy": "serial"}]
        return [layernorm_linear(*values, **choice, **options) for choice in choices]

    automatic, manual = both(*values)
    assert_close(automatic, manual, dtype="float32", length=32)
    assert automatic.sharding.is_equivalent_to(manual.sharding, 2)


@pytest.mark.multi_device
@pytest.mark.parametrize(
    ("strategy", "mesh", "axis"),
    [
        ("serial", "2x4", {"m": "x", "k": "y"}),
        pytest.param("deferred", "8", None, marks=pytest.mark.slow),
    ],
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
    ("strategy", "mesh"),
    [
        ("deferred", "4"),
        pytest.param("deferred", None, marks=pytest.mark.slow),
        pytest.param("centred", "4", marks=pytest.mark.slow),
    ],
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
    fold = unoptimized(functools.partial(fold_layernorm, None, None, dtype=jnp.bfloat16))
    folded = fold(jnp.asarray(weight))
    assert folded.weight.dtype == jnp.bfloat16
    result = unoptimized(normalized_linear)(jnp.asarray(x), folded)
    error = relative_rms(result, normalized(x.astype(np.float64)) @ weight.astype(np.float64))
    # The rounding of the weight, 1.66e-3; in float32 at most 5e-4 more at the last distance.
    assert error.min() > 1.3e-3
    assert error.max() < 2.1e-3, error


# The folded form


@pytest.mark.parametrize("dtype", DTYPES)
def test_column_sums_are_those_of_the_stored_weight(dtype: str) -> None:
    _, scale, bias, weight, linear_bias = arguments("float32", shape=(1, 300, 7))
    fold = unoptimized(functools.partial(fold_layernorm, dtype=dtype))  # keeps the rounding
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
        pytest.param("deferred", None, None, marks=pytest.mark.slow),
        pytest.param("deferred", "2x4", {"m": "x", "k": "y"}, marks=pytest.mark.slow),
        ("centred", "2x4", {"n": "x", "k": "y"}),
    ],
)
def test_folded_form_gives_the_same(strategy: str, mesh: str | None, axis: Any) -> None:
    x, *parameters = arguments("float32")
    options = {"strategy": strategy, "mesh": mesh_of(mesh), "axis": axis}

    @unoptimized
    def run(x: Array, *parameters: Array) -> Array:
        return normalized_linear(x, fold_layernorm(*parameters), **options)

    result = run(x, *parameters)
    value, _ = expected("float32")
    # As above: the mean is left in the product.
    assert_close(result, value, dtype="float32", length=CONTRACTED, amplified=MEAN)


def test_folded_rmsnorm_gives_the_same() -> None:
    values = named(arguments("float16"))
    del values["bias"]
    x, scale, weight, linear_bias = values.values()
    folded = unoptimized(fold_rmsnorm)(scale, weight, linear_bias)
    assert folded.column_sum is None
    result = unoptimized(normalized_linear)(x, folded)
    exact, _ = by_hand(values, COTANGENT, centred=False)
    assert result.dtype == jnp.float16
    assert_close(result, exact, dtype="float16", length=CONTRACTED)
    assert fold_rmsnorm(None, weight).bias is None


# What moves

FOUR = (16, 32, 8)


def moved(strategy: str, axis: Any, **options: Any) -> list[tuple[str, str, int]]:
    values = arguments("float32", shape=FOUR)
    options = {"strategy": strategy, "mesh": harness.mesh("4"), "axis": axis} | options
    run = unoptimized(lambda *values: layernorm_linear(*values, **options))
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
@pytest.mark.parametrize("strategy", ["centred", pytest.param("deferred", marks=pytest.mark.slow)])
def test_split_rows_and_outputs_move_nothing(strategy: str) -> None:
    assert moved(strategy, {"m": "x", "n": "y"}, mesh=harness.mesh("2x4")) == []


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


@pytest.mark.slow
@pytest.mark.multi_device
def test_layers_under_scan_remat_vmap_and_grad() -> None:
    x, weights = harness.normal((2, 3, 8)) + 1, harness.normal((2, 8, 8), seed=5) / 2
    layer = functools.partial(layernorm_linear, mesh=harness.mesh("4"))

    def network(x: Array, weights: Array) -> Array:
        step = jax.checkpoint(lambda x, weight: (layer(x, None, None, weight) + x, None))
        return jax.vmap(lambda x: jax.lax.scan(step, x, weights)[0])(x)

    cotangent = harness.normal(x.shape, seed=1)
    values = {"x": x, "weights": weights}
    result, gradients = harness.value_and_gradients(network, values, cotangent, unoptimized=True)

    rows, above = [np.asarray(x, np.float64).reshape(6, 8)], np.asarray(cotangent).reshape(6, 8)
    for weight in np.asarray(weights):
        rows.append(by_hand({"x": rows[-1], "weight": weight}, above)[0] + rows[-1])
    exact = {"weights": np.zeros(weights.shape)}
    for index in (1, 0):
        _, below = by_hand({"x": rows[index], "weight": np.asarray(weights)[index]}, above)
        exact["weights"][index], above = below["weight"], below["x"] + above
    exact["x"] = above.reshape(x.shape)
    # Rows of mean / deviation up to 4, and two layers.
    close = functools.partial(assert_close, dtype="float32", length=8, amplified=8)
    close(result, rows[-1].reshape(x.shape))
    for name, gradient in gradients.items():
        close(gradient, exact[name])


@pytest.mark.multi_device
def test_gradients_outside_jit_equal_float64_and_compile_once() -> None:
    run = functools.partial(layernorm_linear, mesh=harness.mesh("8"))
    values = arguments("float32")
    # Residuals pass from one compiled program to another.
    result, pull = jax.vjp(run, *values)
    exact, derivatives = expected("float32")
    close = functools.partial(assert_close, dtype="float32", length=CONTRACTED, amplified=MEAN)
    close(result, exact)
    for name, gradient in named(pull(COTANGENT)).items():
        close(gradient, derivatives[name])
    new = [jnp.asarray(1 + np.asarray(value)) for value in values]
    with harness.compilations() as compiled:
        jax.vjp(run, *new)[1](COTANGENT)
    assert compiled == []


def test_forward_mode_is_the_transpose_of_reverse_mode() -> None:
    values = arguments("float32")
    tangents = tuple(jnp.asarray(np.cos(value)) for value in values)
    _, tangent = unoptimized(lambda *pair: jax.jvp(layernorm_linear, *pair))(values, tangents)
    _, gradients = expected("float32")
    along = sum(
        (gradients[name] * np.asarray(tangent)).sum() for name, tangent in named(tangents).items()
    )
    np.testing.assert_allclose((np.asarray(tangent) * COTANGENT).sum(), along, rtol=1e-4)


# Reported failures of other implementations


def by_identity(x: Any, strategy: str, mesh: Any = None, **options: Any) -> np.ndarray:
    """The normalized rows, by a linear layer that does nothing."""
    x = jnp.asarray(x)
    weight = jnp.asarray(np.eye(x.shape[-1]), x.dtype)
    return product_of(x, weight, strategy=strategy, mesh=mesh, **options)


def product_of(x: Array, weight: Array, **options: Any) -> np.ndarray:
    run = unoptimized(lambda x, weight: layernorm_linear(x, None, None, weight, **options))
    return np.asarray(run(x, weight), np.float64)


@pytest.mark.multi_device
@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [
        ("deferred", "8"),  # of which four have padding alone
        ("centred", "4"),
        ("serial", "2"),
        pytest.param("centred", None, marks=pytest.mark.slow),
    ],
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
    # the normalized rows, and a last column where x @ weight is 5e7 in the second, the result 0
    weight = jnp.asarray(np.hstack([np.eye(4), np.full((4, 1), 200)]), jnp.float16)
    result = product_of(rows, weight, strategy=strategy, epsilon=1e-12)
    assert_close(
        result[1:, :4], normalized(np.asarray(rows[1:], np.float64)), dtype="float16", length=4
    )
    np.testing.assert_array_equal(result[0], 0)
    # In `serial` the four rows of size 1 have been rounded.
    assert abs(result[1, 4]) <= (200 * 4 * 2.0**-11 if strategy == "serial" else 0)


def test_float16_mean_squares_stay_in_range() -> None:
    x = np.full((8, 300), 300, np.float16)  # onnxruntime 29034: squares overflow, 0
    weight = np.eye(300, 2, dtype=np.float16)
    run = unoptimized(lambda x, weight: rmsnorm_linear(x, None, weight))
    np.testing.assert_array_equal(run(x, weight), 1)


@pytest.mark.slow
@pytest.mark.multi_device
def test_padding_is_not_counted() -> None:
    # triton 9838: the variance of [1, 2, 4] is 1.5556, not that of [1, 2, 4, 0]
    result = by_identity([[1.0, 2, 4]], "centred", harness.mesh("8"))
    np.testing.assert_allclose(result, (np.array([[1, 2, 4]]) - 7 / 3) / np.sqrt(1.5556), atol=1e-4)


@pytest.mark.multi_device
def test_weight_gradient_is_summed_wide_over_devices() -> None:
    # Liger-Kernel PR 950. Rows of 1 have 1 as normalized value, so the gradient is the sum of the
    # cotangents: 257 on seven devices, 258 on the last. In bfloat16, which has no 257, the parts
    # would be 256 and make 2050, then 2048; the sum 2057 is 2064.
    cotangent = np.ones((8, 256), np.float32)
    cotangent[:, 0] = [2] * 7 + [3]
    cotangent = cotangent.reshape(-1, 1)
    x = np.ones((2048, 1), jnp.bfloat16)

    @unoptimized
    @jax.grad
    def gradient(weight: Array) -> Array:
        result = rmsnorm_linear(
            jnp.asarray(x), None, weight, mesh=harness.mesh("8"), axis={"m": "x"}
        )
        return (result * cotangent).sum()

    assert gradient(np.ones((1, 1), jnp.bfloat16)).item() == 2064


def test_leading_axes_and_single_rows_are_rows() -> None:
    values = arguments("float32", shape=(12, 8, 5))
    exact, _ = by_hand(named(values), np.zeros((12, 5)))

    @unoptimized
    def both(x: Array, *parameters: Array) -> list[Array]:
        return [layernorm_linear(rows, *parameters) for rows in (x.reshape(2, 3, 2, 8), x[0])]

    for result, other in zip(both(*values), (exact.reshape(2, 3, 2, 5), exact[0]), strict=True):
        assert_close(result, other, dtype="float32", length=8, amplified=MEAN)


@pytest.mark.parametrize("strategy", ["deferred", "serial"])
def test_mixed_dtypes_are_computed_in_the_wider(strategy: str) -> None:
    x, *_ = arguments("bfloat16")
    _, *parameters = arguments("float32")
    run = unoptimized(functools.partial(layernorm_linear, strategy=strategy))
    result = run(x, *parameters)
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
        ({"epsilon": -1.0}, "epsilon: got -1.0; expected a number of at least 0"),
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
