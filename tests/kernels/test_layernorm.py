"""LayerNorm and RMSNorm over rows that are split over devices, and their statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomet.kernels import statistics
from jaxcomet.kernels.compiled import collectives
from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.layernorm import distributed_layernorm, distributed_rmsnorm
from jaxcomet.kernels.layernorm import reference as plain
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
KERNELS = {
    "layernorm": (distributed_layernorm, plain.layernorm, ("x", "scale", "bias")),
    "rmsnorm": (distributed_rmsnorm, plain.rmsnorm, ("x", "scale")),
}


WAYS = [(None, "combined"), ("8", "combined"), ("8", "separate")]
"""One device, where there is nothing to combine, and several, in both ways."""


def test_reference_gives_layernorm_worked_out_by_hand():
    # mean 5/2, variance ((3/2)^2 + (1/2)^2) / 2 = 5/4
    row = plain.layernorm(jnp.array([1.0, 2.0, 3.0, 4.0]), epsilon=0.0)
    np.testing.assert_allclose(row, np.array([-1.5, -0.5, 0.5, 1.5]) / np.sqrt(1.25), rtol=1e-6)
    # mean square (9 + 16) / 2 = 25/2
    row = plain.rmsnorm(jnp.array([3.0, 4.0]), epsilon=0.0)
    np.testing.assert_allclose(row, np.array([3, 4]) / np.sqrt(12.5), rtol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", harness.DTYPES)
@pytest.mark.parametrize(("mesh", "axis"), SPLITS, ids=str)
@pytest.mark.slow
def test_value_and_gradient_equal_the_reference(mesh, axis, dtype, reduction, kernel):
    _check(kernel, mesh, axis, dtype, reduction)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("mesh", "axis", "dtype", "reduction"),
    [
        ("8", {"n": "x"}, "float32", "combined"),
        ("8", {"n": "x"}, "bfloat16", "separate"),
        ("2x4", {"m": "x", "n": "y"}, "float16", "combined"),
    ],
    ids=str,
)
def test_value_and_gradient_equal_the_reference_in_some_cases(mesh, axis, dtype, reduction, kernel):
    _check(kernel, mesh, axis, dtype, reduction)


def _check(kernel, mesh, axis, dtype, reduction):
    function, reference, names = KERNELS[kernel]
    arguments = {
        "x": harness.normal((5, 21), dtype) * 3 + 1,
        "scale": harness.normal((21,), dtype, seed=1),
        "bias": harness.normal((21,), dtype, seed=2),
    }
    arguments = {name: arguments[name] for name in names}
    cotangent = harness.normal((5, 21), seed=3)
    value, gradients = harness.value_and_gradients(
        lambda **given: function(**given, mesh=harness.mesh(mesh), axis=axis, reduction=reduction),
        arguments,
        cotangent,
        unoptimized=True,
    )
    expected, slopes = harness.reference(reference, arguments, cotangent)
    assert value.dtype == arguments["x"].dtype
    assert_close(value, expected, dtype=dtype, length=21)
    for name in names:
        assert_close(gradients[name], slopes[name], dtype=dtype, length=21)


# Rows on which a difference of mean squares, a narrow accumulator or a square out of range fails.
_RNG = np.random.default_rng(0)
_ONE_LARGE = np.full(256, 10240, np.float32)
_ONE_LARGE[-1] = 255
ROWS = {
    # pytorch issue 51102; epsilon 1e-5 there, which is a change of 5e-6 here
    "offset-2000": ([2000.1, 2001.3, 1999.2, 2000.6], [-0.2615, 1.3075, -1.4382, 0.3922], 2e-4),
    # onnxruntime issue 28463, tvm PR 19643
    "offset-40000": ([40000.0, 40001, 40002, 40003], [-1.34164, -0.44721, 0.44721, 1.34164], 1e-5),
    "offset-80000": ([80000.0, 80001, 80002, 80003], [-1.34164, -0.44721, 0.44721, 1.34164], 1e-5),
    # onnxruntime issue 21935: a constant row
    "constant": ([1234.0] * 256, [0.0] * 256, 0),
    # pytorch issue 162489: squares of 1e30 leave float32
    "huge": ([1e30, -1e30, 2e30, 0], [0.447214, -1.341641, 1.341641, -0.447214], 1e-6),
    # tt-metal issue 55159: any row times 1e20 as the row itself
    "times-1e20": (
        [1e20, 2e20, 3e20, 4e20],
        [-1.341641, -0.447214, 0.447214, 1.341641],
        1e-6,
    ),
    # triton issue 9838: 1, 2, 4 has variance 14/9, padding left out
    "three": (
        [1.0, 2.0, 4.0],
        list(np.array([-4 / 3, -1 / 3, 5 / 3]) / np.sqrt(14 / 9)),
        2e-6,
    ),
    # T15: mean 4097.875, variance 1.328125
    "t15": (
        [4096 + 0.25 * k for k in range(16)],
        [0.25 * (k - 7.5) / np.sqrt(1.328125 + 1e-6) for k in range(16)],
        1e-5,
    ),
    # mlx issue 2238: 16 values near 1449; the rounded values, in float64
    "near-1449": (
        np.linspace(1448.87, 1450.65, 16, dtype=np.float32).tolist(),
        None,
        2e-4,
    ),
    # TensorRT-LLM samples issue 88
    "ten-thousand": (_ONE_LARGE.tolist(), None, 1e-4),
    # equinox PR 314, flax fast variance: error 3846 there
    "normal-at-10000": ((_RNG.normal(size=4096) + 1e4).astype("float32").tolist(), None, 1e-3),
    # pytorch issue 40302: standard deviation 0.01 at 100
    "small-spread": ((_RNG.normal(size=2048) * 0.01 + 100).astype("float32").tolist(), None, 2e-3),
    # pytorch issue 173793
    "near-the-limit": ([8.5e37, -8.5e37], [1, -1], 1e-6),
}


@pytest.mark.parametrize(("mesh", "reduction"), WAYS)
@pytest.mark.parametrize("length", sorted({len(values) for values, _, _ in ROWS.values()}))
def test_rows_far_from_zero_constant_or_huge(length, mesh, reduction):
    """The right answer by hand, or from the float32 row in float64 with two passes.

    Rows of one length make one array, in which none may disturb another.
    """
    cases = {name: row for name, row in ROWS.items() if len(row[0]) == length}
    devices = harness.mesh(mesh) if mesh else None
    rows = jnp.array([values for values, _, _ in cases.values()])
    results = distributed_layernorm(rows, mesh=devices, reduction=reduction)
    for (name, (values, expected, allowed)), result in zip(cases.items(), results, strict=True):
        if expected is None:
            wide = np.asarray(values, np.float32).astype(np.float64)
            expected = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-6)
        np.testing.assert_allclose(result, expected, rtol=0, atol=allowed, err_msg=name)


@pytest.mark.parametrize(("mesh", "reduction"), WAYS)
def test_steps_of_few_units_in_the_last_place(mesh, reduction):
    # burn issue 5607: mean + k / 1000 rounded to float32, for k = 0..15
    firsts = {1e2: -1.3415, 1e3: -1.3415, 1e4: -1.3313}
    x = jnp.asarray([mean + np.arange(16) * 1e-3 for mean in firsts], "float32")
    devices = harness.mesh(mesh) if mesh else None
    values = distributed_layernorm(x, epsilon=1e-5, mesh=devices, reduction=reduction)
    for (mean, first), value in zip(firsts.items(), values, strict=True):
        moved = 0.0
        if mesh and reduction == "combined":  # the parts' means travel rounded
            moved = np.spacing(np.float32(mean)) / 2 / np.sqrt(2.125e-5 + 1e-5)
            moved += moved**2  # and they widen the row
        np.testing.assert_allclose(value[0], first, rtol=0, atol=5e-4 + moved)


@pytest.mark.parametrize("devices", ["1", "2", "4", "8"])
def test_t15_mean_and_variance_of_a_row_with_an_offset(devices):
    x = jnp.array([[4096 + 0.25 * k for k in range(16)]])
    value = distributed_layernorm(x, mesh=harness.mesh(devices))
    np.testing.assert_allclose(value[0, [0, -1]], [-1.6269778, 1.6269778], rtol=1e-5)
    columns = statistics.Columns(total=16, local=16)
    moments = statistics.moments(x, columns)
    assert float(moments.mean[0]) == 4097.875
    assert float(moments.spread[0] / moments.scale[0] ** 2) == 1.328125


@pytest.mark.parametrize(("mesh", "reduction"), WAYS)
def test_narrow_rows_are_squared_wide(mesh, reduction):
    devices = harness.mesh(mesh) if mesh else None
    # float16 squares above 255.9 are infinite (onnxruntime issue 29034): all ones
    value = distributed_rmsnorm(jnp.full((2, 8), 300, "float16"), mesh=devices, reduction=reduction)
    np.testing.assert_array_equal(value, np.ones((2, 8)))
    # an epsilon that float16 cannot hold (pytorch issue 41527): zeros, not NaN
    value = distributed_layernorm(
        jnp.zeros((1, 10), "float16"), epsilon=1e-12, mesh=devices, reduction=reduction
    )
    np.testing.assert_array_equal(value, np.zeros((1, 10)))
    # consecutive float16 rows all have the same result (xla issue 3658)
    value = distributed_layernorm(
        jnp.arange(30, dtype="float16").reshape(3, 10), mesh=devices, reduction=reduction
    )
    exact = (np.arange(10) - 4.5) / np.sqrt(8.25)
    np.testing.assert_allclose(value, np.tile(exact, (3, 1)), atol=1e-3)


def test_a_sum_of_bfloat16_squares_does_not_stick():
    # ones add up to 256 and no further in bfloat16; their mean square is 1
    value = distributed_rmsnorm(jnp.ones((1, 4096), "bfloat16"), mesh=harness.mesh("8"))
    np.testing.assert_array_equal(value.astype("float32"), np.ones((1, 4096)))


def test_an_offset_scale_survives_bfloat16():
    # 1 + 2**-8 needs more digits than bfloat16 has: the scale of Gemma (Liger PR 1462)
    scale = jnp.array([1 + 2.0**-8, 1.0])
    value = distributed_rmsnorm(jnp.array([[1.0, -1.0]]), scale, epsilon=0.0)
    np.testing.assert_array_equal(value, [[1.00390625, -1.0]])


def test_rms_gradient_of_rows_whose_squares_leave_float16():
    # the norm of (300, 300, 300) and its slope (jax issue 39899): x / rms is 1 everywhere, and
    # the slope of its first element is (1 - 1/3) / 300 to itself, -1/3 / 300 to the others
    slope = jax.grad(lambda x: distributed_rmsnorm(x, epsilon=0.0)[0, 0].astype("float32"))(
        jnp.full((1, 3), 300, "float16")
    )
    np.testing.assert_allclose(slope[0], np.array([2, -1, -1]) / 900, rtol=2e-3)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradients_of_constant_and_huge_rows_are_finite(reduction):
    x = jnp.array([[5.0] * 8, [0.0] * 8, [1e30, -1e30] * 4, [1e-30, -1e-30] * 4])
    for kernel in (distributed_layernorm, distributed_rmsnorm):
        slope = jax.grad(
            lambda x, kernel=kernel: (
                kernel(x, mesh=harness.mesh("4"), reduction=reduction) * jnp.arange(8.0)
            ).sum()
        )(x)
        assert np.isfinite(slope).all()


def test_gradients_of_rows_far_from_zero_are_finite_and_right():
    # a variance from mean squares turns negative here (tensorflow issue 118701)
    x = (harness.normal((4, 16)) + jnp.array([[0.0], [1e4], [1e6], [-1e6]])).astype("float32")
    cotangent = harness.normal((4, 16), seed=1)
    value, gradients = harness.value_and_gradients(
        lambda x: distributed_layernorm(x, mesh=harness.mesh("4")), {"x": x}, cotangent
    )
    expected, slopes = harness.reference(plain.layernorm, {"x": x}, cotangent)
    # Of a row 1e4 deviations from 0 the parts' means are rounded to steps of 1e-3, half of which is
    # 100 times the tolerance of rows about 0, and the variance moves with them; at 1e6 the steps
    # are 1/16: 1/32 of a deviation.
    assert_close(value[:2], expected[:2], dtype="float32", length=16, amplified=200)
    assert np.abs(value - expected).max() <= 1 / 32 + 1e-3
    assert_close(gradients["x"][:2], slopes["x"][:2], dtype="float32", length=16, amplified=200)
    # and the slopes are products of two normalized rows, of up to 3 deviations each
    assert np.abs(gradients["x"] - slopes["x"]).max() <= 2 * 3 / 32


def test_narrow_rows_off_zero_have_unit_variance():
    # bfloat16 rows of mean 5 and deviation 0.1 (tt-metal issue 45968)
    x = (harness.normal((2, 1024)) * 0.1 + jnp.array([[5.0], [-5.0]])).astype("bfloat16")
    value = distributed_layernorm(x, mesh=harness.mesh("8")).astype("float32")
    np.testing.assert_allclose(value.var(axis=1), 1, atol=4e-3)
    np.testing.assert_allclose(value.mean(axis=1), 0, atol=4e-3)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_result_is_rounded_once_behind_scale_and_bias(kernel):
    # cast after scale, not before (TransformerEngine issue 1132), and the inverse deviation not
    # rounded at all, which would be an error of one sign (amd/IRON PR 139)
    function, reference, names = KERNELS[kernel]
    given = {"x": (64, 128), "scale": (128,), "bias": (128,)}
    arguments = {
        name: harness.normal(given[name], "bfloat16", seed) for seed, name in enumerate(names)
    }
    value = np.asarray(function(**arguments).astype("float32"), np.float64)
    exact, _ = harness.reference(reference, arguments, jnp.ones((64, 128)))
    # half a unit in the last place, and what float32 statistics add to it
    ulp = np.asarray(2.0 ** (np.floor(np.log2(np.abs(exact))) - 7))
    assert (np.abs(value - exact) <= 0.5 * ulp + 1e-5).all()


def test_what_follows_under_jit_sees_the_same_rows():
    # a compiled reciprocal was off by 80 (pytorch issue 186577)
    x = harness.normal((64, 128))

    def reciprocal(x):
        return 1 / (jnp.abs(distributed_layernorm(x, mesh=harness.mesh("8"))) + 1e-6)

    # an element near 0 has the error of the row, some 1e-6, against 1e-6: compare its inverse
    np.testing.assert_allclose(1 / jax.jit(reciprocal)(x), 1 / reciprocal(x), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_constant_rows_and_padding_leave_gradients_finite_without_epsilon(kernel):
    # 3 rows on 8 devices: the other 5 hold a row of zeros each, with a variance of 0
    function, reference, names = KERNELS[kernel]
    given = {
        "x": harness.normal((3, 6)).at[1].set(0),
        "scale": harness.normal((6,), seed=1),
        "bias": harness.normal((6,), seed=2),
    }
    arguments = {name: given[name] for name in names}
    cotangent = harness.normal((3, 6), seed=3)
    value, gradients = harness.value_and_gradients(
        lambda **given: function(**given, epsilon=0.0, mesh=harness.mesh("8"), axis={"m": "x"}),
        arguments,
        cotangent,
    )
    expected, slopes = harness.reference(
        lambda **given: reference(**given, epsilon=0.0), arguments, cotangent
    )
    np.testing.assert_array_equal(value[1], given["bias"] if "bias" in names else np.zeros(6))
    assert_close(value, expected, dtype="float32", length=6)
    for name in names:
        assert_close(gradients[name], slopes[name], dtype="float32", length=6)


def test_sixty_five_thousand_rows():
    # one kernel launch too many there (apex issue 411)
    x = harness.normal((65536, 8))
    value = distributed_layernorm(x, mesh=harness.mesh("8"), axis={"m": "x"})
    expected = np.asarray(x, np.float64)
    expected = (expected - expected.mean(1, keepdims=True)) / np.sqrt(
        expected.var(1, keepdims=True) + 1e-6
    )
    assert_close(value, expected, dtype="float32", length=8)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_inf_make_nan_of_their_row_alone(bad):
    x = harness.normal((3, 16)).at[1, 5].set(bad)
    value = distributed_layernorm(x, mesh=harness.mesh("8"))
    assert np.isnan(value[1]).all()
    assert np.isfinite(value[jnp.array([0, 2])]).all()


@pytest.mark.parametrize(
    ("kernel", "options", "expected"),
    [
        # 8 devices x (mean, deviation) x 64 rows of 4 bytes, and of 2
        ("layernorm", {}, [("all-gather", 8 * 2 * 64 * 4)]),
        ("layernorm", {"wire_dtype": "float16"}, [("all-gather", 8 * 2 * 64 * 2)]),
        ("rmsnorm", {}, [("all-gather", 8 * 64 * 4)]),
        # (size, mean) of 64 rows, (square, correction) of 64 rows
        (
            "layernorm",
            {"reduction": "separate"},
            [("all-reduce", 2 * 64 * 4), ("all-reduce", 2 * 64 * 4)],
        ),
        (
            "rmsnorm",
            {"reduction": "separate"},
            [("all-reduce", 64 * 4), ("all-reduce", 64 * 4)],
        ),
    ],
    ids=str,
)
def test_what_moves_is_one_or_two_numbers_a_row(kernel, options, expected):
    x = harness.normal((64, 128))
    compiled = (
        jax.jit(lambda x: KERNELS[kernel][0](x, mesh=harness.mesh("8"), **options))
        .lower(x)
        .compile()
    )
    assert [(each.kind, each.bytes) for each in collectives(compiled)] == expected


@pytest.mark.parametrize("kernel", KERNELS)
def test_automatic_form_gives_the_same(kernel):
    function, reference, _ = KERNELS[kernel]
    x = harness.normal((16, 64))
    expected, _ = harness.reference(reference, {"x": x}, jnp.ones_like(x))
    value = function(x, mesh=harness.mesh("8"), partitioner="auto")
    assert_close(value, expected, dtype="float32", length=64)


BAD = {
    "epsilon": (dict(x=jnp.zeros(3), epsilon=-1.0), "epsilon: got -1.0; expected a number of at"),
    "rank": (dict(x=jnp.float32(1)), "x: got shape (); expected [..., n]"),
    "dtype": (dict(x=jnp.zeros(3, "int32")), "x: got dtype int32; expected a floating-point"),
    "scale": (
        dict(x=jnp.zeros((2, 3)), scale=jnp.zeros(4)),
        "got 4 for scale axis 0 (n), 3 for n; expected equal sizes",
    ),
    "bias": (dict(x=jnp.zeros((2, 3)), bias=jnp.zeros((1, 3))), "bias: got shape (1, 3); expected"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_with_one_message(case):
    arguments, message = BAD[case]
    with pytest.raises(KernelError) as error:
        distributed_layernorm(**arguments)
    assert str(error.value).startswith("distributed_layernorm: ")
    assert message in str(error.value)
