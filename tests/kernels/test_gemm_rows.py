"""GEMM-softmax, GEMM-LayerNorm and GEMM-RMSNorm: every strategy, split and dtype."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomet.kernels.compiled import collectives, memory_bytes
from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.gemm_layernorm import gemm_layernorm, gemm_rmsnorm
from jaxcomet.kernels.gemm_layernorm import reference as plain_norm
from jaxcomet.kernels.gemm_layernorm import sharded as norm
from jaxcomet.kernels.gemm_softmax import gemm_softmax
from jaxcomet.kernels.gemm_softmax import reference as plain_softmax
from jaxcomet.kernels.gemm_softmax import sharded as softmax
from jaxcomet.kernels.statistics import REDUCTIONS
from tests.kernels import harness
from tests.tolerance import assert_close

KERNELS = {
    "gemm_softmax": (gemm_softmax, plain_softmax.gemm_softmax, ("a", "b"), softmax.STRATEGIES),
    "gemm_layernorm": (
        gemm_layernorm,
        plain_norm.gemm_layernorm,
        ("a", "b", "scale", "bias"),
        norm.STRATEGIES,
    ),
    "gemm_rmsnorm": (gemm_rmsnorm, plain_norm.gemm_rmsnorm, ("a", "b", "scale"), norm.STRATEGIES),
}
M, N, K = 13, 21, 20
MESHES = [
    ("1", {"n": "x"}),
    ("2", {"n": "x"}),
    ("4", {"k": "x"}),
    ("8", {"n": "x"}),
    ("2x4", {"k": "x", "n": "y"}),
]
"""One split a mesh, with every dtype."""
SPLITS = [
    ("4", {"n": "x"}),
    ("8", {"k": "x"}),
    ("8", {"m": "x"}),
    ("2x4", {"m": "x", "n": "y"}),
    ("2x4", {"m": "x", "k": "y"}),
    ("2x4", {"n": ("x", "y")}),
]
"""The other splits, in float32."""
CASES = [(kernel, strategy) for kernel, (*_, known) in KERNELS.items() for strategy in known]


def _arguments(names, dtype="float32", m=M, n=N, k=K):
    every = {
        "a": harness.normal((m, k), dtype),
        "b": harness.normal((k, n), dtype, seed=1),
        "scale": harness.normal((n,), dtype, seed=2),
        "bias": harness.normal((n,), dtype, seed=3),
    }
    return {name: every[name] for name in names}


def _check(kernel, strategy, mesh, axis, dtype, **options):
    function, reference, names, _ = KERNELS[kernel]
    arguments = _arguments(names, dtype)
    cotangent = harness.normal((M, N), seed=4)
    value, gradients = harness.value_and_gradients(
        lambda **given: function(
            **given, strategy=strategy, mesh=harness.mesh(mesh), axis=axis, **options
        ),
        arguments,
        cotangent,
        unoptimized=True,
    )
    expected, slopes = harness.reference(reference, arguments, cotangent)
    assert value.dtype == jnp.dtype(dtype)
    assert_close(value, expected, dtype=dtype, length=K + N)
    for name in names:
        assert_close(gradients[name], slopes[name], dtype=dtype, length=K + N)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", harness.DTYPES)
@pytest.mark.parametrize(("mesh", "axis"), MESHES, ids=str)
@pytest.mark.parametrize(("kernel", "strategy"), CASES)
def test_value_and_gradients_equal_the_reference(kernel, strategy, mesh, axis, dtype):
    _check(kernel, strategy, mesh, axis, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "axis"), SPLITS, ids=str)
@pytest.mark.parametrize(("kernel", "strategy"), CASES)
def test_other_splits_give_the_same(kernel, strategy, mesh, axis):
    _check(kernel, strategy, mesh, axis, "float32")


@pytest.mark.parametrize(
    ("kernel", "mesh", "axis", "dtype"),
    [
        ("gemm_softmax", "8", {"n": "x"}, "float32"),
        ("gemm_layernorm", "2x4", {"k": "x", "n": "y"}, "bfloat16"),
        ("gemm_rmsnorm", "4", {"m": "x"}, "float16"),
    ],
    ids=str,
)
def test_every_strategy_equals_the_reference(kernel, mesh, axis, dtype):
    for strategy in KERNELS[kernel][3]:
        _check(kernel, strategy, mesh, axis, dtype)


@pytest.mark.parametrize("kernel", KERNELS)
def test_separate_statistics_give_the_same(kernel):
    strategy = KERNELS[kernel][3][0]
    _check(kernel, strategy, "8", {"n": "x"}, "float32", reduction="separate")


@pytest.mark.parametrize("kernel", KERNELS)
def test_automatic_form_gives_the_same(kernel):
    strategy = KERNELS[kernel][3][0]
    _check(kernel, strategy, "2x4", {"k": "x", "n": "y"}, "float32", partitioner="auto")


@pytest.mark.parametrize(
    ("kernel", "explicit"),
    [
        ("gemm_softmax", False),
        ("gemm_softmax", True),
        pytest.param("gemm_layernorm", False, marks=pytest.mark.slow),
        pytest.param("gemm_rmsnorm", True, marks=pytest.mark.slow),
    ],
)
def test_gradients_outside_jit_and_with_weights_closed_over(kernel, explicit):
    """Also on a mesh as `jax.make_mesh` makes it, with explicit axis types."""
    function, reference, names, _ = KERNELS[kernel]
    arguments = _arguments(names)
    devices = jax.make_mesh((8,), ("x",)) if explicit else harness.mesh("8")
    cotangent = harness.normal((M, N), seed=4)
    _, slopes = harness.reference(reference, arguments, cotangent)

    def loss(**some):
        return (function(**{**arguments, **some}, mesh=devices) * cotangent).sum()

    for name in names:
        with jax.set_mesh(devices) if explicit else contextlib.nullcontext():
            slope = jax.grad(lambda value, name=name: loss(**{name: value}))(arguments[name])
        assert_close(slope, slopes[name], dtype="float32", length=K + N)


@pytest.mark.parametrize("devices", ["1", "2", "4", "8"])
def test_t14_gradient_through_a_sum_over_devices(devices):
    # sum over shards of (w x)^2 for x = 0..7, w = 3: 9 * 140 = 1260, and 2 * 3 * 140 = 840
    mesh, spec = harness.mesh(devices), jax.P("x")

    def shard(w, x):
        return jax.lax.psum(((w * x) ** 2).sum(), "x")

    x = jnp.arange(8.0)
    inside = jax.shard_map(
        lambda w, x: jax.value_and_grad(shard)(w, x),
        mesh=mesh,
        in_specs=(jax.P(), spec),
        out_specs=(jax.P(), jax.P()),
    )
    outside = jax.value_and_grad(
        lambda w: jax.shard_map(shard, mesh=mesh, in_specs=(jax.P(), spec), out_specs=jax.P())(w, x)
    )
    for value, slope in (jax.jit(inside)(3.0, x), jax.jit(outside)(3.0)):
        assert (float(value), float(slope)) == (1260, 840)


@pytest.mark.parametrize(
    ("strategy", "axis"),
    [
        *((strategy, {"n": "x"}) for strategy in softmax.STRATEGIES),
        ("fused-gemm-distsm", {"k": "x"}),
    ],
    ids=str,
)
def test_hidden_elements_and_empty_rows(strategy, axis):
    where = jnp.asarray(np.random.default_rng(5).random((M, N)) < 0.6).at[3].set(False)
    arguments = _arguments(("a", "b"))
    cotangent = harness.normal((M, N), seed=4)
    value, gradients = harness.value_and_gradients(
        lambda a, b: gemm_softmax(
            a, b, where, strategy=strategy, mesh=harness.mesh("8"), axis=axis
        ),
        arguments,
        cotangent,
        unoptimized=True,
    )
    expected, slopes = harness.reference(
        lambda a, b: plain_softmax.gemm_softmax(a, b, where), arguments, cotangent
    )
    assert not np.asarray(value)[~np.asarray(where)].any()
    assert_close(value, expected, dtype="float32", length=K + N)
    for name in arguments:
        assert_close(gradients[name], slopes[name], dtype="float32", length=K + N)
    assert not np.asarray(gradients["a"][3]).any()


# m x k x n = 64 x 32 x 128 on 8 devices in float32: a row's statistics are 4 bytes each
_ROWS, _ELEMENTS = 64 * 4, 64 * 128 * 4
_KINDS = {
    "fused-gemm-distsm": [("all-gather", 8 * 2 * _ROWS)],
    "fused-distsm": [("all-gather", 8 * 2 * _ROWS)],
    "fused-gemm-sm": [("all-gather", _ELEMENTS)],
    "fused-gemm-distln": [("all-gather", 8 * 2 * _ROWS)],
    "fused-distln": [("all-gather", 8 * 2 * _ROWS)],
    "fused-gemm-ln": [("all-gather", _ELEMENTS)],
}


def _compiled(kernel, strategy, **options):
    function, _, names, _ = KERNELS[kernel]
    arguments = _arguments(names, m=64, n=128, k=32)

    def run(**given):
        return function(**given, strategy=strategy, mesh=harness.mesh("8"), **options)

    return jax.jit(run).lower(**arguments).compile()


@pytest.mark.parametrize(("kernel", "strategy"), CASES)
def test_what_moves_over_split_columns(kernel, strategy):
    if strategy == "unfused":
        # maxima and sums; or (size, mean) and (square, correction), without means for RMSNorm
        each = {"gemm_softmax": _ROWS, "gemm_layernorm": 2 * _ROWS, "gemm_rmsnorm": _ROWS}[kernel]
        expected = [("all-reduce", each), ("all-reduce", each)]
    else:
        expected = _KINDS[strategy]
        if kernel == "gemm_rmsnorm" and strategy != "fused-gemm-ln":
            expected = [("all-gather", 8 * _ROWS)]  # the root mean square alone
    moved = collectives(_compiled(kernel, strategy, axis={"n": "x"}))
    assert [(each.kind, each.bytes) for each in moved] == expected


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_moves_over_a_split_contraction_or_rows(kernel):
    strategy = KERNELS[kernel][3][0]
    moved = collectives(_compiled(kernel, strategy, axis={"k": "x"}))
    # each device ends with 64 / 8 rows of sums
    assert [(each.kind, each.bytes) for each in moved] == [("reduce-scatter", _ELEMENTS // 8)]
    assert collectives(_compiled(kernel, strategy, axis={"m": "x"})) == ()


@pytest.mark.parametrize("kernel", KERNELS)
def test_temporary_memory_grows_with_rows_alone(kernel):
    function, _, names, known = KERNELS[kernel]
    devices = harness.mesh("8")

    def temporaries(m, n):
        shapes = {"a": (m, 64), "b": (64, n), "scale": (n,), "bias": (n,)}
        arguments = {name: jax.ShapeDtypeStruct(shapes[name], jnp.float32) for name in names}
        split = {"b": jax.P(None, "x"), "scale": jax.P("x"), "bias": jax.P("x"), "a": jax.P()}
        compiled = (
            jax.jit(
                lambda given: function(**given, mesh=devices),
                in_shardings=({name: jax.NamedSharding(devices, split[name]) for name in names},),
            )
            .lower(arguments)
            .compile()
        )
        return memory_bytes(compiled).temporary_bytes

    assert known
    # 8 devices x 2 numbers a row sent and received, and a few more of each row
    assert temporaries(512, 4096) <= 64 * 512 * 4
    assert temporaries(512, 8192) == temporaries(512, 4096)


@pytest.mark.parametrize("kernel", KERNELS)
def test_new_values_compile_nothing(kernel):
    function, _, names, _ = KERNELS[kernel]
    first, second = _arguments(names), {k: v + 1 for k, v in _arguments(names).items()}
    function(**first, mesh=harness.mesh("8"))
    with harness.compilations() as compiled:
        function(**second, mesh=harness.mesh("8"))
    assert compiled == []


def test_works_under_vmap_scan_and_remat():
    arguments = _arguments(("a", "b"))
    stacked = jnp.stack([arguments["a"], arguments["a"] * 2])

    def run(a):
        return gemm_softmax(a, arguments["b"], mesh=harness.mesh("8"))

    each = jnp.stack([run(a) for a in stacked])
    np.testing.assert_allclose(jax.jit(jax.vmap(run))(stacked), each, rtol=1e-5)
    _, scanned = jax.jit(lambda s: jax.lax.scan(lambda carry, a: (carry, run(a)), 0, s))(stacked)
    np.testing.assert_allclose(scanned, each, rtol=1e-5)

    def slope(run):
        return jax.jit(jax.grad(lambda a: (run(a) ** 2).sum()))(stacked[0])

    np.testing.assert_allclose(slope(jax.checkpoint(run)), slope(run), rtol=1e-5, atol=1e-7)


def test_leading_axes_are_rows():
    a, b = harness.normal((2, 3, 5, 8)), harness.normal((8, 6), seed=1)
    value = gemm_softmax(a, b, mesh=harness.mesh("4"))
    expected, _ = harness.reference(
        plain_softmax.gemm_softmax, {"a": a, "b": b}, jnp.zeros((2, 3, 5, 6))
    )
    assert_close(value, expected, dtype="float32", length=14)


@pytest.mark.parametrize("axis", [{"n": "x"}, {"k": "x"}, {"m": "x"}], ids=str)
def test_sixty_five_thousand_rows(axis):
    a, b = harness.normal((65536, 4)), harness.normal((4, 8), seed=1)
    value = gemm_softmax(a, b, mesh=harness.mesh("8"), axis=axis)
    exact = np.exp(np.asarray(a, np.float64) @ np.asarray(b, np.float64))
    assert_close(value, exact / exact.sum(1, keepdims=True), dtype="float32", length=12)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_narrow_products_do_not_overflow(reduction):
    # |a| |b| k = 300 * 300 * 8 is beyond float16, the normalized row is not
    a, b = jnp.full((2, 8), 300, "float16"), jnp.full((8, 8), 300, "float16").at[:, 0].set(-300)
    value = gemm_layernorm(a, b, mesh=harness.mesh("4"), reduction=reduction)
    # seven equal values above one: 1/sqrt(7), and -sqrt(7)
    np.testing.assert_allclose(value[0], [-np.sqrt(7), *[1 / np.sqrt(7)] * 7], rtol=1e-3)


BAD = {
    "rank": (dict(a=jnp.zeros(3)), "a: got shape (3,); expected [..., m, k]"),
    "sizes": (dict(a=jnp.zeros((2, 3))), "got 3 for a axis 1 (k), 4 for b axis 0 (k)"),
    "dtype": (dict(a=jnp.zeros((2, 4), "int8")), "a: got dtype int8; expected a floating-point"),
    "strategy": (dict(strategy="flash"), "strategy: got 'flash'; expected fused-gemm-distsm or"),
    "dimension": (dict(axis={"heads": "x"}), "axis: got 'heads'; expected m or n or k"),
    "mesh-axis": (dict(axis="z"), "axis of n: got 'z'; expected x"),
    "twice": (dict(axis={"m": "x", "n": "x"}), "got mesh axis 'x' for m and n"),
    "explicit": (
        dict(partitioner="auto", mesh=jax.make_mesh((2,), ("x",))),
        "partitioner: got 'auto' with a mesh of explicit axis types",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_with_one_message(case):
    changed, message = BAD[case]
    good = dict(a=jnp.zeros((2, 4)), b=jnp.zeros((4, 5)), mesh=harness.mesh("2"))
    with pytest.raises(KernelError) as error:
        gemm_softmax(**{**good, **changed})
    assert str(error.value).startswith("gemm_softmax: ")
    assert message in str(error.value)
