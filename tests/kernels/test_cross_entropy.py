"""Cross-entropy over a vocabulary that is split over devices, from logits and from a product."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from jaxcomet._compat import enable_x64
from jaxcomet.kernels.compiled import collectives, memory_bytes
from jaxcomet.kernels.cross_entropy import cross_entropy, linear_cross_entropy
from jaxcomet.kernels.cross_entropy import reference as plain
from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.statistics import REDUCTIONS
from tests.kernels import harness
from tests.tolerance import assert_close, tolerance

SPLITS = [
    ("1", {"v": "x"}),
    ("2", {"v": "x"}),
    ("4", {"v": "x"}),
    ("8", {"v": "x"}),
    ("8", {"m": "x"}),
    ("2x4", {"m": "x", "v": "y"}),
    ("2x4", {"v": ("x", "y")}),
]
SMOOTHING = (0.0, 0.1)
MIB = 2**20
QUICK = {"xla_backend_optimization_level": 0}
"""Half the time of compilation, and the same program but for its machine code."""


def _quick(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(function, compiler_options=QUICK)


def _labels(m: int, v: int) -> Array:
    """Any classes, the first and the last among them."""
    labels = np.random.default_rng(2).integers(0, v, m)
    labels[:2] = 0, v - 1
    return jnp.asarray(labels)


def _exact(logits, labels, smoothing=0.0):
    """The loss of each token and its derivative by the logits in float64, by numpy."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    exponentials = np.exp(shifted)
    total = exponentials.sum(-1, keepdims=True)
    minus_log_p = np.log(total) - shifted
    chosen = np.asarray(labels)[..., None] == np.arange(logits.shape[-1])
    losses = (1 - smoothing) * minus_log_p[chosen].reshape(chosen.shape[:-1])
    if smoothing:
        losses += smoothing * minus_log_p.mean(-1)
    target = (1 - smoothing) * chosen + smoothing / logits.shape[-1]
    return losses, exponentials / total - target


def test_reference_agrees_with_numpy_in_float64():
    logits = np.random.default_rng(1).normal(size=(7, 33)) * 20
    labels, cotangent = _labels(7, 33), _cotangent(7)
    with enable_x64(True):
        value, gradients = harness.value_and_gradients(
            lambda **logits: jnp.stack(
                [
                    plain.cross_entropy(each, labels, label_smoothing=float(smoothing))
                    for smoothing, each in logits.items()
                ]
            ),
            {str(smoothing): jnp.asarray(logits) for smoothing in SMOOTHING},
            jnp.stack([cotangent] * len(SMOOTHING)),
            unoptimized=True,
        )
    for smoothing, found in zip(SMOOTHING, value, strict=True):
        losses, slopes = _exact(logits, labels, smoothing)
        np.testing.assert_allclose(found, losses, rtol=1e-13)
        slopes *= np.asarray(cotangent, np.float64)[:, None]
        np.testing.assert_allclose(gradients[str(smoothing)], slopes, atol=1e-14)


# The values of eight logits 0, 0.5, ..., 3.5 with the label 5: NVIDIA/Megatron-LM issues 737, 7464.
SMOOTHED_GRADIENT = [
    *(-0.0003966, 0.0074552, 0.0204005, 0.0417438),
    *(0.0769329, -0.7650501, 0.2306038, 0.3883104),
]


@pytest.mark.parametrize(("mesh", "reduction"), [*zip("28", REDUCTIONS[::-1], strict=True)])
def test_smoothing_is_over_the_classes_of_all_devices(mesh, reduction):
    """A mean over the classes of one device would give 2.1476 and 1.8809 on two."""
    row = np.arange(8, dtype=np.float32) * 0.5
    without = np.where(np.arange(8) == 1, -np.inf, 0)  # a class without probability
    logits, labels = jnp.asarray(np.stack([row, row * 1000, without])), jnp.full(3, 5)
    options: dict[str, Any] = {"mesh": harness.mesh(mesh), "reduction": reduction}

    @_quick
    def run(logits):
        def smoothed(logits):
            return cross_entropy(logits, labels, label_smoothing=0.1, **options)

        value, pull = jax.vjp(smoothed, logits)
        return cross_entropy(logits, labels, **options), value, *pull(jnp.ones(3))

    sharp, value, gradient = run(logits)
    for result, one, thousand, infinite in (
        (sharp, 1.9142667, 1000.0, np.log(7)),
        (value, 1.9892667, 1075.0, np.inf),
    ):
        for shard in result.addressable_shards:  # the same on every device
            found = np.asarray(shard.data)
            assert abs(found[0] - one) < 1e-5
            np.testing.assert_allclose(found[1:], [thousand, infinite], rtol=1e-5)
    gradient = np.asarray(gradient)
    np.testing.assert_allclose(gradient[0], SMOOTHED_GRADIENT, atol=1e-6)
    # p is 1 for the last class and 0 for the others
    expected = np.eye(8)[7] - 0.9 * np.eye(8)[5] - 0.1 / 8
    np.testing.assert_allclose(gradient[1], expected, atol=1e-6)


def _assert_equal_to_reference(mesh, axis, dtype, smoothing, reduction, v):
    m = 5
    labels, cotangent = _labels(m, v), _cotangent(m)
    logits = np.array(harness.normal((m, v), dtype)) * 4
    if smoothing == 0:
        logits[1, : v // 2] = -np.inf  # all that the first devices hold; the label is the last
    options: dict[str, Any] = {"label_smoothing": smoothing, "reduction": reduction}
    options |= {"mesh": harness.mesh(mesh), "axis": axis}
    value, gradients = harness.value_and_gradients(
        lambda logits: cross_entropy(logits, labels, **options),
        {"logits": jnp.asarray(logits)},
        cotangent,
        unoptimized=True,
    )
    expected, slopes = _exact(logits, labels, smoothing)
    slopes *= np.asarray(cotangent, np.float64)[:, None]
    assert value.dtype == jnp.float32  # of the rounded logits, but not rounded itself
    assert gradients["logits"].dtype == logits.dtype
    assert_close(value, expected, dtype="float32", length=v)
    assert_close(gradients["logits"], slopes, dtype=dtype, length=v)


def _cotangent(m: int) -> Array:
    return harness.normal((m,), seed=1)


@pytest.mark.parametrize(
    ("split", "dtype", "smoothing", "reduction", "v"),
    [
        (SPLITS[1], "float32", 0.1, "combined", 13),
        (SPLITS[2], "bfloat16", 0.0, "separate", 16),
        (SPLITS[3], "float16", 0.1, "combined", 3),  # fewer classes than devices
        (SPLITS[4], "float32", 0.0, "combined", 13),
        (SPLITS[5], "bfloat16", 0.1, "separate", 13),
        (SPLITS[6], "float32", 0.0, "combined", 13),
    ],
    ids=str,
)
def test_value_and_gradient_equal_the_reference(split, dtype, smoothing, reduction, v):
    _assert_equal_to_reference(split[0], split[1], dtype, smoothing, reduction, v)


def _assert_linear_equal_to_reference(mesh, axis, dtype, smoothing, block, v):
    m, k = 5, 7
    labels, cotangent = _labels(m, v), _cotangent(m)
    arguments = {"x": harness.normal((m, k), dtype), "weight": harness.normal((k, v), dtype, 3)}
    where = jnp.array([True, True, False, True, True])
    options: dict[str, Any] = {"label_smoothing": smoothing, "block": block}
    options |= {"mesh": harness.mesh(mesh), "axis": axis}
    value, gradients = harness.value_and_gradients(
        lambda x, weight: linear_cross_entropy(
            x.at[2].set(jnp.nan), weight, labels, where, **options
        ),
        arguments,
        cotangent,
        unoptimized=True,
    )
    x, weight = (np.asarray(each, np.float64) for each in arguments.values())
    counted = np.asarray(where, np.float64)
    expected, by_logits = _exact(x @ weight, labels, smoothing)
    expected *= counted
    by_logits *= (np.float64(cotangent) * counted)[:, None]
    slopes = {"x": by_logits @ weight.T, "weight": x.T @ by_logits}
    assert value.dtype == jnp.float32
    assert_close(value, expected, dtype="float32", length=k + v)
    for name, slope in slopes.items():
        assert gradients[name].dtype == arguments[name].dtype
        assert_close(gradients[name], slope, dtype=dtype, length=k + v)


@pytest.mark.parametrize(
    ("split", "dtype", "smoothing", "block", "v"),
    [
        (SPLITS[1], "float32", 0.1, 3, 13),  # blocks of 3, 3 and 1 columns
        (SPLITS[4], "bfloat16", 0.1, 1, 13),
        (SPLITS[5], "float16", 0.0, 2, 13),
        (SPLITS[3], "float32", 0.1, None, 3),
    ],
    ids=str,
)
def test_product_and_its_gradients_equal_the_reference(split, dtype, smoothing, block, v):
    _assert_linear_equal_to_reference(split[0], split[1], dtype, smoothing, block, v)


# A narrow dtype has one split of each mesh and one of two forms.
EVERY = [
    *((*split, "float32", slice(None)) for split in SPLITS),
    *((*SPLITS[i], "bfloat16", slice(1)) for i in (0, 1, 2, 3, 5)),
    *((*SPLITS[i], "float16", slice(1, None)) for i in (0, 1, 2, 3, 5)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "axis", "dtype", "forms"), EVERY, ids=str)
def test_both_functions_equal_the_reference_in_every_case(mesh, axis, dtype, forms):
    for smoothing, reduction in ((0.0, "separate"), (0.1, "combined"))[forms]:
        _assert_equal_to_reference(mesh, axis, dtype, smoothing, reduction, 13)
    for smoothing, block in ((0.0, 2), (0.1, None))[forms]:
        _assert_linear_equal_to_reference(mesh, axis, dtype, smoothing, block, 13)


INF, NAN = np.inf, np.nan
EDGES = {
    # name: logits, label, counts, loss, gradient
    # log 2 is lost in logsumexp - logit (mlx PR 4188)
    "large-offset": ([1e8, 1e8, -INF], 0, True, np.log(2), [-0.5, 0.5, 0]),
    # optax PR 1762
    "minus-inf": ([-INF, 0, 0], 1, True, np.log(2), [0, -0.5, 0.5]),
    "minus-inf-under-the-label": ([0, -INF, 0], 1, True, INF, [0.5, -1, 0.5]),
    "sure": ([0, 200, -200], 1, True, 0, [0, 0, 0]),
    "far-below-zero": ([-300, -300, -1e30], 0, True, np.log(2), [-0.5, 0.5, 0]),
    "nan": ([0, NAN, 0], 0, True, NAN, [NAN] * 3),
    "plus-inf": ([0, INF, 0], 0, True, NAN, [NAN] * 3),
    "all-minus-inf": ([-INF] * 3, 0, True, NAN, [NAN] * 3),
    "label-below": ([0, 0, 0], -1, True, NAN, [NAN] * 3),
    "label-above": ([0, 0, 0], 3, True, NAN, [NAN] * 3),
    "not-counted": ([0, 0, 0], 0, False, 0, [0] * 3),
    "nan-not-counted": ([NAN, INF, -INF], -100, False, 0, [0] * 3),
}


def _edges():
    return (jnp.asarray(np.array(values)) for values in zip(*EDGES.values(), strict=True))


def test_edge_cases_worked_out_by_hand():
    """All in one array: no token disturbs another, in value or in gradient."""
    logits, labels, where, losses, slopes = _edges()
    forms = {
        "reference": plain.cross_entropy,
        "one_device": cross_entropy,
        **{
            name: functools.partial(cross_entropy, mesh=harness.mesh("8"), reduction=name)
            for name in REDUCTIONS
        },
    }
    value, gradients = harness.value_and_gradients(
        lambda **logits: jnp.stack(
            [form(logits[name], labels, where) for name, form in forms.items()]
        ),
        dict.fromkeys(forms, logits),
        jnp.ones((len(forms), len(EDGES))),
        unoptimized=True,
    )
    for name, found in zip(forms, np.asarray(value), strict=True):
        np.testing.assert_allclose(found, losses, rtol=1e-6, atol=1e-7, err_msg=name)
        np.testing.assert_allclose(gradients[name], slopes, rtol=1e-6, atol=1e-7, err_msg=name)


def test_gradient_of_a_sure_prediction_is_rounded_once():
    """p - 1 of a rounded p is off by 20 % at p = 0.99, by all at 0.999 (Liger-Kernel PR 1329)."""
    margins = np.array([[np.log(99), 0], [np.log(999), 0]])
    logits = {dtype: jnp.asarray(margins, dtype) for dtype in ("bfloat16", "float16")}
    slope = jax.grad(lambda logits: cross_entropy(logits, jnp.zeros(2, int)).sum())
    gradients = _quick(lambda logits: jax.tree.map(slope, logits))(logits)
    for dtype, gradient in gradients.items():
        exact = -1 / (1 + np.exp(np.asarray(logits[dtype], np.float64)[:, 0]))
        np.testing.assert_allclose(
            np.float64(gradient), np.stack([exact, -exact], 1), rtol=tolerance(dtype, 2) / 4
        )


def test_narrow_logits_have_the_loss_of_equal_wide_ones():
    # TransformerEngine PR 3193
    logits, labels = harness.normal((6, 40), "bfloat16") * 4, _labels(6, 40)
    losses = _quick(lambda logits: cross_entropy(logits, labels, mesh=harness.mesh("2")))
    narrow, wide = losses(logits), losses(logits.astype("float32"))
    np.testing.assert_array_equal(narrow, wide)


def test_weight_gradient_is_accumulated_wide():
    """A sum of ones sticks at 256 in bfloat16 (Liger-Kernel PR 830); 2048 is the right answer."""
    m = 4096
    x, labels = jnp.ones((m, 1), "bfloat16"), jnp.zeros(m, int)
    losses = lambda weight: linear_cross_entropy(x, weight, labels, mesh=harness.mesh("2"))  # noqa: E731
    gradient = _quick(jax.grad(lambda weight: losses(weight).sum()))(jnp.zeros((1, 2), "bfloat16"))
    np.testing.assert_array_equal(gradient.astype("float32"), [[-2048, 2048]])


def test_a_mean_over_65536_tokens_does_not_underflow_in_float16():
    """1 / (30 x 65536) has four binary digits in float16: a gradient 5 % off, were it taken so."""
    m, v = 65536, 30
    x, labels = jnp.ones((m, 1), "float16"), jnp.zeros(m, int)
    split: dict[str, Any] = {"mesh": harness.mesh("2x4"), "axis": {"m": "x", "v": "y"}}
    loss, gradient = _quick(
        jax.value_and_grad(lambda w: linear_cross_entropy(x, w, labels, **split).mean())
    )(jnp.zeros((1, v), "float16"))
    np.testing.assert_allclose(loss, np.log(v), rtol=1e-6)
    expected = np.full(v, 1 / v) - np.eye(v)[0]
    assert_close(gradient[0], expected, dtype="float16", length=v)


@pytest.mark.slow
def test_65536_tokens():
    logits, labels = harness.normal((65536, 12)) * 3, _labels(65536, 12)
    split: dict[str, Any] = {"mesh": harness.mesh("2x4"), "axis": {"m": "x", "v": "y"}}
    value = _quick(lambda logits: cross_entropy(logits, labels, **split))(logits)
    assert_close(value, _exact(logits, labels)[0], dtype="float32", length=12)


def _moved(function, *arguments):
    """Kind, bytes and times of what value and gradients together move, sorted."""
    gradient = jax.value_and_grad(
        lambda *arguments: function(*arguments).sum(), argnums=tuple(range(len(arguments)))
    )
    shardings = [argument.sharding for argument in arguments]
    compiled = jax.jit(gradient, out_shardings=(None, tuple(shardings)), compiler_options=QUICK)
    compiled = compiled.lower(*arguments).compile()
    return sorted((each.kind, each.bytes, each.times) for each in collectives(compiled))


def _placed(array: Array, mesh, *spec: str | None) -> Array:
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # 8 devices x (maximum, sum, logit under the label) x 64 tokens, of 4 bytes and of 2
        ({}, [("all-gather", 8 * 3 * 64 * 4, 1)]),
        ({"wire_dtype": "float16"}, [("all-gather", 8 * 3 * 64 * 2, 1)]),
        # and the share of the mean
        ({"label_smoothing": 0.1}, [("all-gather", 8 * 4 * 64 * 4, 1)]),
        ({"reduction": "separate"}, [("all-reduce", 64 * 4, 1), ("all-reduce", 2 * 64 * 4, 1)]),
    ],
    ids=str,
)
def test_what_moves_is_a_few_numbers_a_token_and_nothing_in_the_backward_pass(options, expected):
    mesh = harness.mesh("8")
    logits = _placed(harness.normal((64, 256)), mesh, None, "x")
    labels = _labels(64, 256)
    assert _moved(lambda logits: cross_entropy(logits, labels, mesh=mesh, **options), logits) == (
        expected
    )


def test_the_product_moves_the_gradient_of_x_as_well_and_that_of_weight_over_tokens():
    mesh, labels = harness.mesh("2x4"), _labels(64, 256)
    x = _placed(harness.normal((64, 24)), mesh, "x", None)
    weight = _placed(harness.normal((24, 256)), mesh, None, "y")

    def losses(x, weight):
        return linear_cross_entropy(
            x, weight, labels, block=16, mesh=mesh, axis={"m": "x", "v": "y"}
        )

    assert _moved(losses, x, weight) == [
        ("all-gather", 4 * 3 * 32 * 4, 1),
        ("all-reduce", 4, 1),  # the sum of the losses, which the test takes
        ("all-reduce", 24 * 16 * 4, 4),  # the gradient of 16 columns, four times
        ("all-reduce", 32 * 24 * 4, 1),  # the gradient of this device's tokens
    ]


def _linear_program(m, k, v, dtype="float32", **options):
    """Value and gradients of the mean, compiled and not run."""

    def mean(x, weight, labels):
        return linear_cross_entropy(x, weight, labels, **options).mean()

    shapes = [((m, k), dtype), ((k, v), dtype), ((m,), "int32")]
    return (
        jax.jit(jax.value_and_grad(mean, argnums=(0, 1)), compiler_options=QUICK)
        .lower(*(jax.ShapeDtypeStruct(*shape) for shape in shapes))
        .compile()
    )


def test_memory_does_not_grow_with_tokens_times_vocabulary():
    """It is two blocks of logits, of which the vocabulary has 128, and less than one row of all."""
    m, block = 256, 128
    compiled = _linear_program(m, 8, 128 * block, "bfloat16", block=block)
    assert memory_bytes(compiled).temporary_bytes < 2 * m * block * 4 + 128 * block * 4


@pytest.mark.slow
def test_memory_at_the_size_of_llama():
    """2048 tokens, k = 4096, 128,256 classes: the logits alone are 1002 MiB in float32."""
    temporary = memory_bytes(_linear_program(2048, 4096, 128256, "bfloat16")).temporary_bytes
    assert temporary < 192 * MIB


@pytest.mark.parametrize("smoothing", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_logits_are_not_copied(smoothing):
    """Temporary memory is that of a few numbers a token: a copy would be 16 times the limit."""
    mesh = harness.mesh("8")
    logits = _placed(jnp.zeros((256, 8192)), mesh, None, "x")
    labels = jnp.zeros(256, int)

    def mean(logits):
        return cross_entropy(logits, labels, mesh=mesh, label_smoothing=smoothing).mean()

    # the value alone as well, since in a gradient copies hide in the place of the result
    for function in (mean, jax.grad(mean)):
        compiled = jax.jit(function, compiler_options=QUICK).lower(logits).compile()
        assert memory_bytes(compiled).temporary_bytes < 64 * 256 * 4


def test_gradient_inside_jit_by_every_transform():
    """Recomputed, mapped and in a loop, with the labels closed over: one program."""
    logits, labels = harness.normal((3, 4, 10)), _labels(12, 10).reshape(3, 4)
    losses = functools.partial(cross_entropy, mesh=harness.mesh("2"), label_smoothing=0.1)

    def slope(logits, labels):
        return jax.grad(lambda logits: losses(logits, labels).sum())(logits)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(logits):
        return (
            jax.grad(jax.checkpoint(lambda logits: losses(logits, labels).sum()))(logits),
            jax.vmap(slope)(logits, labels),
            jax.lax.scan(lambda _, token: (None, slope(*token)), None, (logits, labels))[1],
        )

    _, slopes = _exact(logits, labels, 0.1)
    for gradient in run(logits):
        assert_close(gradient, slopes, dtype="float32", length=10)


def test_second_derivative():
    """That of logsumexp is diag(p) - p p', for any label."""
    logits = harness.normal((6,))
    hessian = jax.jit(
        jax.hessian(
            lambda logits: cross_entropy(
                logits, jnp.array(2), mesh=harness.mesh("2"), label_smoothing=0.1
            )
        ),
        compiler_options=QUICK,
    )(logits)
    p = np.exp(np.float64(logits))
    p /= p.sum()
    assert_close(hessian, np.diag(p) - np.outer(p, p), dtype="float32", length=6)


def test_gradient_outside_jit_and_a_second_call_compiles_nothing():
    mesh, labels = harness.mesh("2"), jnp.array([0, 2, 5, 7])

    def gradients(seed):
        x, weight = harness.normal((4, 3), seed=seed), harness.normal((3, 8), seed=seed + 1)
        logits = harness.normal((4, 8), seed=seed)
        # one argument, the other closed over
        by_weight = jax.grad(lambda w: linear_cross_entropy(x, w, labels, mesh=mesh).sum())(weight)
        by_logits = jax.grad(lambda each: cross_entropy(each, labels, mesh=mesh).sum())(logits)
        return x, weight, logits, by_weight, by_logits

    gradients(0)
    with harness.compilations() as compiled:
        x, weight, logits, by_weight, by_logits = gradients(1)
    assert compiled == []
    assert_close(by_logits, _exact(logits, labels)[1], dtype="float32", length=8)
    x, weight = (np.asarray(each, np.float64) for each in (x, weight))
    expected = x.T @ _exact(x @ weight, labels)[1]
    assert_close(by_weight, expected, dtype="float32", length=11)


def test_a_narrow_wire_rounds_small_numbers_alone():
    logits, labels = harness.normal((16, 64)) * 50, _labels(16, 64)  # maxima it cannot hold
    options: dict[str, Any] = {"wire_dtype": "bfloat16", "label_smoothing": 0.1}
    losses = functools.partial(cross_entropy, mesh=harness.mesh("8"), **options)
    for value in _quick(
        lambda logits: [losses(logits, labels, reduction=reduction) for reduction in REDUCTIONS]
    )(logits):
        assert_close(value, _exact(logits, labels, 0.1)[0], dtype="bfloat16", length=64)


def test_automatic_forms_give_the_same():
    mesh, labels = harness.mesh("4"), _labels(6, 16)
    x, weight = harness.normal((6, 8)), harness.normal((8, 16), seed=3)
    where = jnp.arange(6) != 3
    logits = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    expected = _exact(logits, labels, 0.1)[0] * where
    options: dict[str, Any] = {"mesh": mesh, "label_smoothing": 0.1, "partitioner": "auto"}
    for value in _quick(
        lambda x, weight, logits: (
            linear_cross_entropy(x, weight, labels, where, **options),
            cross_entropy(logits, labels, where, **options),
        )
    )(x, weight, jnp.float32(logits)):
        assert_close(value, expected, dtype="float32", length=24)


def test_labels_of_any_integer_dtype():
    # 300 classes are more than eight bits can count
    logits, classes = harness.normal((3, 300)), np.array([0, 5, 127])
    labels = [jnp.asarray(classes, dtype) for dtype in ("int8", "uint8", "uint32")]
    run = _quick(lambda logits, labels: [cross_entropy(logits, each) for each in labels])
    for value in run(logits, labels):
        assert_close(value, _exact(logits, classes)[0], dtype="float32", length=300)


def test_dtypes_stay_under_64_bits():
    options: dict[str, Any] = {"mesh": harness.mesh("2"), "label_smoothing": 0.1}

    @_quick
    def run(arguments, labels):
        return {
            dtype: (
                cross_entropy(x, labels, **options),
                linear_cross_entropy(x, weight, labels, block=3, **options),
            )
            for dtype, (x, weight) in arguments.items()
        }

    with enable_x64(True):
        labels = jnp.array([0, 2**32 + 1])  # no class, also of a dtype that would lose the 2**32
        dtypes = ("float32", "float64")
        found = run(
            {dtype: (np.ones((2, 4), dtype), np.ones((4, 8), dtype)) for dtype in dtypes}, labels
        )
    for dtype, losses in found.items():
        for loss, classes in zip(losses, (4, 8), strict=True):
            assert loss.dtype == dtype
            np.testing.assert_allclose(loss, [np.log(classes), np.nan], rtol=1e-6)


def test_leading_axes_are_tokens():
    logits, labels = harness.normal((2, 3, 5)), _labels(6, 5).reshape(2, 3)

    @_quick
    def run(logits, labels):
        where = jnp.array([[True], [False]])
        one = cross_entropy(logits[1, 2], labels[1, 2], jnp.array(True))
        return cross_entropy(logits, labels, where), one

    value, one = run(logits, labels)
    expected, _ = _exact(logits, labels)
    assert_close(value, expected * np.array([[1], [0]]), dtype="float32", length=5)
    assert_close(one, expected[1, 2], dtype="float32", length=5)


X, LABELS = jnp.zeros((4, 3)), jnp.zeros(4, int)
LINEAR = {"x": X, "weight": jnp.zeros((3, 5)), "labels": LABELS}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "rank": (dict(logits=jnp.float32(1)), "logits: got shape (); expected [..., v]"),
    "empty": (dict(logits=jnp.zeros((4, 0))), "logits: got shape (4, 0), axis 1 of size 0"),
    "dtype": (dict(logits=jnp.zeros((4, 3), int)), "logits: got dtype int32; expected a floating"),
    "labels-dtype": (dict(labels=jnp.zeros(4)), "labels: got float32 of shape (4,)"),
    "labels-shape": (dict(labels=jnp.zeros(3, int)), "leading shape of logits, (4,)"),
    "where": (dict(where=jnp.zeros(4)), "where: got float32 of shape (4,); expected booleans"),
    "smoothing": (dict(label_smoothing=1.0), "label_smoothing: got 1.0; expected 0 <= a < 1"),
    "reduction": (dict(reduction="tree"), "expected combined or separate"),
    "partitioner": (dict(partitioner="pjit"), "expected shard_map or auto"),
    "axis-alone": (dict(axis="x"), "axis: got 'x' without a mesh"),
}
BAD_LINEAR: dict[str, tuple[dict[str, Any], str]] = {
    "x": (dict(x=jnp.zeros((4, 0))), "x: got shape (4, 0), axis 1 of size 0"),
    "weight": (dict(weight=jnp.zeros(3)), "weight: got shape (3,); expected [k, v]"),
    "k": (dict(weight=jnp.zeros((2, 5))), "got 3 for x axis 1 (k), 2 for weight axis 0 (k)"),
    "dtype": (dict(weight=jnp.zeros((3, 5), int)), "weight: got dtype int32"),
    "labels": (dict(labels=jnp.zeros((4, 1), int)), "leading shape of x, (4,)"),
    "block": (dict(block=0), "block: got 0; expected at least 1 column, or None"),
    "smoothing": (dict(label_smoothing=-0.1), "label_smoothing: got -0.1"),
}


ALL_BAD = [
    *((cross_entropy, {"logits": X, "labels": LABELS}, *case) for case in BAD.values()),
    *((linear_cross_entropy, LINEAR, *case) for case in BAD_LINEAR.values()),
]


@pytest.mark.parametrize(
    ("function", "good", "bad", "message"),
    ALL_BAD,
    ids=[*BAD, *(f"linear-{x}" for x in BAD_LINEAR)],
)
def test_bad_arguments_are_refused_with_one_message(function, good, bad, message):
    with pytest.raises(KernelError) as error:
        function(**(good | bad))
    assert str(error.value).startswith(f"{function.__name__}: ")
    assert message in str(error.value)
