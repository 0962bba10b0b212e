"""Softmax-matmul: strategies, meshes and dtypes against float64, and what may not leak."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.sharding import Mesh

from jaxcomet.kernels.compiled import collectives
from jaxcomet.kernels.devices import make_mesh
from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.softmax_matmul import reference, softmax_matmul
from tests.kernels import harness
from tests.tolerance import assert_close

STRATEGIES = ("deferred", "serial")
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
    ("2x4", {"m": "y", "n": "x"}),
)
FULL = (
    *itertools.product(STRATEGIES, harness.DTYPES, SPLITS),
    *itertools.product(STRATEGIES, ["float32"], MORE_SPLITS),
)
COVERING = (
    # strategy, dtype, split, reduction, batch, mask: each with each at least once; mesh 4 below
    ("serial", "float16", ("1", None), "combined", (), None),
    ("deferred", "float16", ("2", "x"), "separate", (), "columns"),
    ("deferred", "float32", ("8", None), "combined", (), "some"),
    ("serial", "float32", ("2x4", {"m": "x", "k": "y"}), "separate", (3,), "rows"),
    ("deferred", "bfloat16", ("2x4", {"n": "x", "k": "y"}), "combined", (2, 2), "some"),
    ("serial", "bfloat16", ("2x4", {"m": "y", "n": "x"}), "combined", (), "some"),
)
ROWS, CONTRACTED, COLUMNS = 13, 27, 11  # none of 2, 4 and 8 divides any of them


def mesh_of(name: str | None) -> Mesh | None:
    return None if name is None else harness.mesh(name)


def unoptimized(function: Callable[..., Any]) -> Any:
    """Jitted as by the `unoptimized` of `harness.value_and_gradients`, for the same reason."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def mask(kind: str | None, batch: tuple[int, ...]) -> Array | None:
    """Row 0 sees nothing of the first half of k, row 1 nothing at all; or the same for all rows."""
    rng = np.random.default_rng(6)
    if kind is None:
        return None
    if kind == "columns":
        return jnp.asarray(rng.uniform(size=CONTRACTED) > 0.4)
    if kind == "rows":
        return jnp.asarray(np.arange(ROWS)[:, None] % 3 != 1)
    some = rng.uniform(size=(*batch, ROWS, CONTRACTED)) > 0.4
    some[..., 0, : CONTRACTED // 2] = False
    some[..., 1, :] = False
    return jnp.asarray(some)


@functools.cache
def arguments(dtype: str, batch: tuple[int, ...]) -> dict[str, Array]:
    return {
        "x": jnp.asarray(3 * np.asarray(harness.normal((*batch, ROWS, CONTRACTED))), dtype),
        "v": harness.normal((*batch, CONTRACTED, COLUMNS), dtype, seed=1),
    }


def check(
    strategy: str,
    dtype: str,
    split: tuple[str | None, Any],
    reduction: str,
    batch: tuple[int, ...],
    kind: str | None,
) -> None:
    options = {"mesh": mesh_of(split[0]), "axis": split[1], "reduction": reduction}
    values, where = arguments(dtype, batch), mask(kind, batch)
    cotangent = harness.normal((*batch, ROWS, COLUMNS), seed=2)
    result, gradients = harness.value_and_gradients(
        functools.partial(softmax_matmul, where=where, strategy=strategy, **options),
        values,
        cotangent,
        unoptimized=True,
    )
    exact, derivatives = by_hand(values["x"], values["v"], where, cotangent)
    assert result.dtype == dtype
    assert_close(result, exact, dtype=dtype, length=CONTRACTED)
    for name, gradient in gradients.items():
        assert gradient.dtype == dtype, name
        assert_close(gradient, derivatives[name], dtype=dtype, length=CONTRACTED)


def by_hand(
    x: Any, v: Any, where: Any = None, cotangent: Any = 0.0
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The result and the gradients of sum(result * cotangent), in float64, by their formulas."""
    x, v, cotangent = (np.asarray(value, np.float64) for value in (x, v, cotangent))
    numerators = np.exp(x - x.max(axis=-1, keepdims=True)) * (1 if where is None else where)
    total = numerators.sum(axis=-1, keepdims=True)
    p = numerators / np.where(total == 0, 1, total)
    result = p @ v
    cotangent = np.broadcast_to(cotangent, result.shape)
    dp = cotangent @ np.swapaxes(v, -1, -2)
    dx = p * (dp - (p * dp).sum(axis=-1, keepdims=True))
    return result, {"x": dx, "v": np.swapaxes(p, -1, -2) @ cotangent}


@pytest.mark.multi_device
@pytest.mark.parametrize(("strategy", "dtype", "split", "reduction", "batch", "kind"), COVERING)
def test_value_and_gradients_equal_float64(
    strategy: str,
    dtype: str,
    split: tuple[str | None, Any],
    reduction: str,
    batch: tuple[int, ...],
    kind: str | None,
) -> None:
    check(strategy, dtype, split, reduction, batch, kind)


@pytest.mark.slow
@pytest.mark.multi_device
@pytest.mark.parametrize(("strategy", "dtype", "split"), FULL, ids=str)
def test_value_and_gradients_equal_float64_everywhere(
    strategy: str, dtype: str, split: tuple[str | None, Any]
) -> None:
    check(strategy, dtype, split, "combined", (), "some")


@pytest.mark.multi_device
def test_automatic_partitioning_means_the_same() -> None:
    values = {"x": harness.normal((2, 8, 16)), "v": harness.normal((2, 16, 4), seed=1)}
    where = jnp.asarray(np.arange(16) != 3)
    options: dict[str, Any] = {"mesh": harness.mesh("2x4"), "axis": {"m": "x", "k": "y"}}

    @unoptimized
    def both(x: Array, v: Array) -> list[Array]:
        choices: list[dict[str, Any]] = [{"partitioner": "auto"}, {}]
        return [softmax_matmul(x, v, where, **choice, **options) for choice in choices]

    automatic, manual = both(**values)
    assert_close(automatic, manual, dtype="float32", length=16)
    assert automatic.sharding.is_equivalent_to(manual.sharding, 3)


# What moves

M, K, N = 16, 32, 8
PRODUCT = ("reduce-scatter", M // 4 * N * 4)  # bytes; each of 4 devices keeps a quarter of the rows


@pytest.mark.multi_device
@pytest.mark.parametrize(
    ("strategy", "axis", "reduction", "expected"),
    [
        # maximum and sum of M rows, from 4 devices
        ("deferred", "x", "combined", [("all-gather", 4 * 2 * M * 4), PRODUCT]),
        ("serial", "x", "combined", [("all-gather", 4 * 2 * M * 4), PRODUCT]),
        ("deferred", "x", "separate", [("all-reduce", M * 4), ("all-reduce", M * 4), PRODUCT]),
        pytest.param("deferred", {"n": "x"}, "combined", [], marks=pytest.mark.slow),
    ],
)
def test_products_move_once_and_beside_them_two_numbers_a_row(
    strategy: str, axis: Any, reduction: str, expected: list[tuple[str, int]]
) -> None:
    options = {"mesh": harness.mesh("4"), "axis": axis, "reduction": reduction}
    run = unoptimized(lambda x, v: softmax_matmul(x, v, strategy=strategy, **options))
    program = run.lower(harness.normal((M, K)), harness.normal((K, N))).compile()
    assert sorted((one.kind, one.bytes) for one in collectives(program)) == expected


# Conventions and reported failures


def result_of(x: Any, v: Any, where: Any = None, **options: Any) -> np.ndarray:
    run = unoptimized(functools.partial(softmax_matmul, **options))
    return np.asarray(run(x, v, where), np.float64)


EVERYWHERE = pytest.mark.parametrize(
    ("strategy", "mesh"),
    [("deferred", "4"), ("serial", "4"), pytest.param("deferred", None, marks=pytest.mark.slow)],
)


@pytest.mark.multi_device
@EVERYWHERE
def test_rows_of_reported_failures(strategy: str, mesh: str | None) -> None:
    inf, nan = np.inf, np.nan
    x = np.array(
        [
            [-inf, -inf, -200, -201],  # flash-attention 2082: a hidden first block makes zeros
            [200, 100, 0, 0],  # DeepLearningExamples 169: exponentials overflow at 89
            [-200, -200, -inf, -inf],  # underflow at -104: 0 / 0
            [-inf] * 4,  # pytorch 103749: NaN
            [inf, 0, 0, 0],  # jax 21495: documented as NaN
            [nan, 0, 0, 0],
            [0, 0, 0, 0],
            [1, 1, 100, nan],  # jax 17117: what is hidden reaches the gradient
        ],
        np.float32,
    )
    where = np.ones((8, 4), bool)
    where[7, 2:] = False
    function = functools.partial(
        softmax_matmul, where=jnp.asarray(where), strategy=strategy, mesh=mesh_of(mesh)
    )
    # each column of v is one element of the probabilities
    result, gradients = harness.value_and_gradients(
        function,
        {"x": jnp.asarray(x), "v": jnp.asarray(np.eye(4))},
        jnp.asarray(np.tile(np.arange(4.0), (8, 1))),
        unoptimized=True,
    )
    half, one = [0.5, 0.5, 0, 0], 1 / (1 + np.exp(-1))
    rows = [
        [0, 0, one, 1 - one],
        [1, 0, 0, 0],
        half,
        [0] * 4,
        [nan] * 4,
        [nan] * 4,
        [0.25] * 4,
        half,
    ]
    np.testing.assert_allclose(result, rows, rtol=1e-6, atol=1e-7)
    finite = [0, 1, 2, 3, 6, 7]
    p, g = np.asarray(rows)[finite], np.arange(4)
    expected = p * (g - (p * g).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(np.asarray(gradients["x"])[finite], expected, atol=1e-6)


@pytest.mark.multi_device
@EVERYWHERE
def test_what_a_row_does_not_see_in_v_never_reaches_it(strategy: str, mesh: str | None) -> None:
    # pytorch 101967; row 0 sees the NaN and the infinity, rows 1 and 2 do not, row 3 sees nothing
    x = np.zeros((4, 8), np.float32)
    x[1, 5:7] = -np.inf
    where = np.ones((4, 8), bool)
    where[2, 5:7] = where[3] = False
    v = np.arange(16, dtype=np.float32).reshape(8, 2)
    v[5, 1], v[6, 0] = np.nan, np.inf
    function = functools.partial(
        softmax_matmul, where=jnp.asarray(where), strategy=strategy, mesh=mesh_of(mesh)
    )
    cotangent = jnp.asarray([[0.0, 0], [1, 1], [1, -1], [1, 1]])
    result, gradients = harness.value_and_gradients(
        function, {"x": jnp.asarray(x), "v": jnp.asarray(v)}, cotangent, unoptimized=True
    )
    gradients = {name: np.asarray(gradient) for name, gradient in gradients.items()}
    seen = v[[0, 1, 2, 3, 4, 7]].mean(axis=0)
    np.testing.assert_allclose(result, [[np.nan] * 2, seen, seen, [0, 0]], rtol=1e-6)
    assert np.isfinite(gradients["x"][1:]).all()
    np.testing.assert_array_equal(gradients["v"][5:7], 0)  # rows 1 and 2 alone have cotangents
    np.testing.assert_allclose(gradients["v"][0], [1 / 3, 0], atol=1e-6)


def test_nan_in_v_stays_in_its_column() -> None:
    v = np.ones((3, 2), np.float32)
    v[1, 0] = np.nan
    np.testing.assert_array_equal(result_of(np.zeros((2, 3), np.float32), v), [[np.nan, 1]] * 2)


@pytest.mark.multi_device
def test_sum_is_of_the_rounded_numbers_that_the_product_sees() -> None:
    # With v of ones both are the same sum, so that the result is 1. Sums of unrounded numbers would
    # be off by some of 2**-9 (candle 3727, executorch 20090: by a factor of two).
    result = result_of(harness.normal((4, 512)), np.ones((512, 1), jnp.bfloat16))
    np.testing.assert_allclose(result, 1, rtol=1e-6)
    equal = result_of(np.zeros((1, 4096), np.float16), np.eye(4096, 1, dtype=np.float16))
    np.testing.assert_array_equal(equal, 1 / 4096)


def test_large_values_pass_through_one_visible_row() -> None:
    # pytorch 121558: 133120 in bfloat16, with one key
    v = np.full((2, 3), 133120, jnp.bfloat16)
    where = np.asarray([True, False])
    x = np.full((1, 2), 133120, jnp.bfloat16)
    np.testing.assert_array_equal(result_of(x, v, where), 133120)


@pytest.mark.multi_device
def test_padding_is_not_counted() -> None:
    result = result_of(np.zeros((1, 3), np.float32), np.eye(3, dtype=np.float32), mesh=make_mesh(8))
    np.testing.assert_allclose(result, 1 / 3, rtol=1e-6)


# Transformations


@pytest.mark.multi_device
def test_second_call_with_new_values_compiles_nothing() -> None:
    x, v = harness.normal((4, 16)), harness.normal((16, 3))
    new = jnp.asarray(np.asarray(x) + 1), jnp.asarray(np.full((16, 3), np.nan, np.float32))
    softmax_matmul(x, v, mesh=make_mesh(2))
    with harness.compilations() as compiled:
        softmax_matmul(*new, mesh=make_mesh(2))
    assert compiled == []


@pytest.mark.multi_device
@pytest.mark.parametrize("mesh", ["4", pytest.param(None, marks=pytest.mark.slow)])
def test_vmap_is_a_batch_and_keeps_the_branch(mesh: str | None) -> None:
    x, v = np.asarray(harness.normal((3, 5, 16))), np.array(harness.normal((3, 16, 4), seed=1))
    v[1, 3, 2] = np.nan  # in one example alone
    where = jnp.asarray(np.arange(16) != 3)
    function = functools.partial(softmax_matmul, where=where, mesh=mesh_of(mesh))
    compiled = unoptimized(jax.vmap(function)).lower(x, v).compile()
    exact, _ = by_hand(x, np.nan_to_num(v), where)
    assert_close(compiled(x, v), exact, dtype="float32", length=16)
    assert " conditional(" in str(
        compiled.as_text()
    )  # a select would compute both products, always


@pytest.mark.slow
@pytest.mark.multi_device
def test_scan_remat_and_grad_inside_jit_equal_float64() -> None:
    x, v = harness.normal((8, 8)), harness.normal((3, 8, 8), seed=1)

    def network(layer: Any) -> Any:
        def apply(x: Array, v: Array) -> Array:
            step = jax.checkpoint(lambda x, v: (layer(x, v) + x, None))
            return jax.lax.scan(step, x, v)[0]

        return apply

    values, cotangent = {"x": x, "v": v}, harness.normal(x.shape, seed=2)
    layer = functools.partial(softmax_matmul, mesh=harness.mesh("4"))
    actual = harness.value_and_gradients(network(layer), values, cotangent, unoptimized=True)
    exact = harness.reference(jax.jit(network(reference.softmax_matmul)), values, cotangent)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(exact), strict=True):
        # three layers, of which each feeds exponents of the next
        assert_close(one, other, dtype="float32", length=8, amplified=4)


def test_forward_mode_is_the_transpose_of_reverse_mode() -> None:
    x, v = arguments("float32", ()).values()
    cotangent, dx, dv = harness.normal((ROWS, COLUMNS), seed=2), np.cos(x), np.ones_like(v)
    _, tangent = unoptimized(lambda *pairs: jax.jvp(softmax_matmul, *pairs))((x, v), (dx, dv))
    _, exact = by_hand(x, v, cotangent=cotangent)
    along = (exact["x"] * dx).sum() + (exact["v"] * dv).sum()
    np.testing.assert_allclose((np.asarray(tangent) * cotangent).sum(), along, rtol=1e-4)


def test_reference_keeps_the_conventions_of_nan() -> None:
    v = np.asarray([[1.0], [np.nan]])
    x = np.asarray([[0.0, -np.inf], [0, 0], [-np.inf, -np.inf]])
    result = unoptimized(reference.softmax_matmul)(x, v)
    np.testing.assert_array_equal(result, [[1], [np.nan], [0]])


def test_leading_axes_and_single_rows_are_rows() -> None:
    x, v = (np.asarray(value) for value in arguments("float32", ()).values())
    x = x[:12]
    exact, _ = by_hand(x, v)

    @unoptimized
    def both(x: Array, v: Array) -> list[Array]:
        return [softmax_matmul(rows, v) for rows in (x.reshape(2, 6, CONTRACTED), x[0])]

    for result, other in zip(both(x, v), (exact.reshape(2, 6, COLUMNS), exact[0]), strict=True):
        assert_close(result, other, dtype="float32", length=CONTRACTED)


# Refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": jnp.ones((3, 5))}, r"got 5 for x axis 1 \(k\), 4 for v axis 0 \(k\)"),
        ({"x": jnp.ones((3, 4), int)}, "x: got dtype int32; expected a floating-point dtype"),
        ({"v": jnp.ones(4)}, r"v: got shape \(4,\); expected \[k, n\] or \[..., k, n\]"),
        ({"v": jnp.ones((2, 4, 2))}, r"x: got shape \(3, 4\); expected \[..., m, k\] with the 1"),
        (
            {"x": jnp.ones((3, 3, 4)), "v": jnp.ones((2, 4, 2))},
            "got 3 for x axis 0, 2 for v axis 0; expected equal sizes",
        ),
        ({"where": jnp.ones((3, 4))}, r"where: got float32 of shape \(3, 4\); expected booleans"),
        ({"strategy": "flash"}, "strategy: got 'flash'; expected deferred or serial"),
        ({"partitioner": "gspmd"}, "partitioner: got 'gspmd'"),
        ({"reduction": "ring"}, "reduction: got 'ring'; expected combined or separate"),
        ({"axis": "x"}, "axis: got 'x' without a mesh"),
    ],
)
def test_arguments_that_do_not_fit_are_named(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"x": jnp.ones((3, 4)), "v": jnp.ones((4, 2))}
    with pytest.raises(KernelError, match=f"^softmax_matmul: {message}"):
        softmax_matmul(**(given | options))
