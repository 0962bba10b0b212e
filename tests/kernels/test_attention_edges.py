"""Attention where softmaxes break: empty rows, infinities, NaN, scores far from 0, narrow dtypes.

The cases are bug reports of other attention kernels; each names its report and has its answer
worked out, in numpy or by hand.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxcomet.kernels.attention import attention, reference
from jaxcomet.kernels.attention.merge import log_of_sum, merge
from jaxcomet.kernels.partition import Partition
from tests.kernels import harness
from tests.tolerance import assert_close

T, F = True, False
INF = np.inf
SMALLEST = float(np.finfo(np.float32).min)
ROWS = {
    # scores, which keys are visible; the blocks are two keys wide
    "hidden-large (jax 17117)": ([1, 1, 100, 0], [T, T, F, F]),
    "all-hidden (pytorch 103749, flash-attention 978)": ([1, 2, 3, 4], [F, F, F, F]),
    "all-minus-infinity (pytorch 41508)": ([-INF] * 4, [T, T, T, T]),
    "all-finfo-min (pytorch 110213, transformers 17306)": ([SMALLEST] * 4, [T, T, T, T]),
    "first-block-hidden (flash-attention 2082)": ([0, 0, -200, -201], [F, F, T, T]),
    "first-block-minus-infinity": ([-INF, -INF, -200, -201], [T, T, T, T]),
    "below-a-sentinel (flashinfer 4401)": ([-60000, -60001, -INF, 0], [T, T, T, F]),
    "lse-below-88 (pytorch 196678)": ([-100, -101, -102, 0], [T, T, T, F]),
    "far-above-88 (DeepLearningExamples 169)": ([1000, 1000, 999, -INF], [T, T, T, T]),
    "larger-block-later (ring-flash-attention 30)": ([-100, -100, 100, 100], [T, T, T, T]),
    "ordinary": ([0, 1, 2, 3], [T, T, T, T]),
}
RUNS = [
    ("flash", None, None),
    ("partial", None, None),
    ("unfused", "2", {"keys": "x"}),
    ("flash", "4", {"keys": "x"}),
    ("ring", "2x4", {"sequence": ("x", "y")}),
]


@functools.cache
def program(strategy, mesh, axis, **options):
    """Output, lse and the gradients of query, key, value and bias, for given cotangents."""
    execution: dict[str, Any] = {"strategy": strategy, "block_q": 2, "block_k": 2, **options}
    if mesh is not None:
        execution |= {"mesh": harness.mesh(mesh), "axis": dict(axis)}

    def run(query, key, value, bias, mask, cotangents):
        def function(query, key, value, bias):
            return attention(
                query, key, value, bias, mask, scale=1.0, return_residual=True, **execution
            )

        results, pull = jax.vjp(function, query, key, value, bias)
        return *results, *pull(cotangents)

    return jax.jit(run, compiler_options={"xla_backend_optimization_level": 0})


def run(strategy, mesh, axis, *arguments):
    """The arrays of `program`, without batch and heads, in float64."""
    results = program(strategy, mesh, axis and tuple(axis.items()))(*arguments)
    return [np.asarray(x, np.float64) for x in results]


def expected_rows(scores, visible, value, d_out, d_lse):
    """By numpy, row by row: output, lse, gradient of the values and of the scores."""
    out, lse = np.zeros(d_out.shape), np.full(len(scores), -INF)
    d_value, d_scores = np.zeros(value.shape), np.zeros(scores.shape)
    for row, (numbers, seen) in enumerate(zip(scores, visible, strict=True)):
        seen = seen & (numbers > -INF)
        if not seen.any():
            continue
        largest = numbers[seen].max()
        weights = np.where(seen, np.exp(np.where(seen, numbers - largest, 0)), 0)
        lse[row] = largest + np.log(weights.sum())
        weights /= weights.sum()
        out[row] = weights @ value
        d_value += np.outer(weights, d_out[row])
        d_scores[row] = weights * (value @ d_out[row] - out[row] @ d_out[row] + d_lse[row])
    return out, lse, d_value, d_scores


def score_case():
    """All rows in one array: scores by the bias, since the queries are 0."""
    scores = np.array([numbers for numbers, _ in ROWS.values()], np.float32)
    visible = np.array([seen for _, seen in ROWS.values()])
    value = harness.normal((1, 4, 1, 3), seed=1)
    rows = len(ROWS)
    cotangents = harness.normal((1, rows, 1, 3), seed=2), harness.normal((1, rows, 1), seed=3)
    query, key = jnp.zeros((1, rows, 1, 2)), harness.normal((1, 4, 1, 2), seed=4)
    return scores, visible, (query, key, value), cotangents


@pytest.mark.parametrize(("strategy", "mesh", "axis"), RUNS, ids=str)
def test_rows_that_broke_other_kernels_are_right_and_disturb_none(strategy, mesh, axis):
    scores, visible, arrays, cotangents = score_case()
    results = run(
        strategy,
        mesh,
        axis,
        *arrays,
        jnp.asarray(scores[None, None]),
        visible[None, None],
        cotangents,
    )
    out, lse, d_query, d_key, d_value, d_bias = results
    d_out, d_lse = (np.asarray(x, np.float64)[0, :, 0] for x in cotangents)
    value = np.asarray(arrays[2], np.float64)[0, :, 0]
    expected = expected_rows(scores.astype(np.float64), visible, value, d_out, d_lse)
    for name, got, exact in zip(
        ("out", "lse", "value", "scores"),
        (out[0, :, 0], lse[0, :, 0], d_value[0, :, 0], d_bias[0, 0]),
        expected,
        strict=True,
    ):
        np.testing.assert_allclose(got, exact, rtol=3e-6, atol=3e-6, err_msg=name)
    # dQ = dS K with the keys as they are, dK = dS^T Q with queries of 0
    np.testing.assert_allclose(
        d_query[0, :, 0], expected[3] @ np.asarray(arrays[1])[0, :, 0], atol=3e-6
    )
    assert not d_key.any()


@pytest.mark.parametrize(("strategy", "mesh", "axis"), RUNS, ids=str)
def test_a_visible_infinity_makes_its_row_nan_and_no_other(strategy, mesh, axis):
    # softmax([inf, 0]) is NaN (jax 21495)
    scores, visible, arrays, cotangents = score_case()
    last = len(ROWS) - 1
    clean = run(
        strategy,
        mesh,
        axis,
        *arrays,
        jnp.asarray(scores[None, None]),
        visible[None, None],
        cotangents,
    )
    scores[last, 1] = INF
    spoilt = run(
        strategy,
        mesh,
        axis,
        *arrays,
        jnp.asarray(scores[None, None]),
        visible[None, None],
        cotangents,
    )
    for index in (0, 1, 2):  # output, lse, gradient of the query
        assert np.isnan(spoilt[index][0, last]).all()
        np.testing.assert_array_equal(spoilt[index][0, :last], clean[index][0, :last])
    np.testing.assert_array_equal(spoilt[5][0, 0, :last], clean[5][0, 0, :last])


def leak_case():
    """Key 2 is hidden from all, query 3 sees nothing, and queries 4, 5 see keys 4, 5 alone."""
    mask = np.zeros((1, 1, 6, 6), bool)
    mask[..., :3, [0, 1, 3]] = True
    mask[..., 4:, 4:] = True
    arrays = [
        harness.normal((1, 6, 2, 4), seed=1),
        harness.normal((1, 6, 1, 4), seed=2),
        harness.normal((1, 6, 1, 3), seed=3),
        harness.normal((1, 2, 6, 6), seed=4),
    ]
    cotangents = harness.normal((1, 6, 2, 3), seed=5), harness.normal((1, 6, 2), seed=6)
    return arrays, jnp.asarray(mask), cotangents


@pytest.mark.parametrize(("strategy", "mesh", "axis"), RUNS, ids=str)
def test_what_is_hidden_leaks_nowhere(strategy, mesh, axis):
    # pytorch 101967; bit by bit the same, whatever stands where nothing looks
    arrays, mask, cotangents = leak_case()

    def filled(fill):
        query, key, value, bias = arrays
        hidden = jnp.where(mask, bias, fill)
        return run(
            strategy,
            mesh,
            axis,
            query.at[:, 3].set(fill),
            key.at[:, 2].set(fill),
            value.at[:, 2].set(fill),
            hidden,
            mask,
            tuple(x.at[:, 3].set(fill) for x in cotangents),
        )

    clean = filled(0.0)
    assert all(np.isfinite(x).all() for x in clean[2:])
    for fill in (np.nan, INF, -INF, 3e38):
        for got, wanted in zip(filled(fill), clean, strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("strategy", "mesh", "axis"), RUNS, ids=str)
def test_a_nan_reaches_just_those_that_see_it(strategy, mesh, axis):
    arrays, mask, cotangents = leak_case()

    def spoilt(position, row):
        inputs = [*arrays, *cotangents]
        inputs[position] = inputs[position].at[:, row].set(np.nan)
        return run(strategy, mesh, axis, *inputs[:4], mask, tuple(inputs[4:]))

    clean = run(strategy, mesh, axis, *arrays, mask, cotangents)
    cases = {
        # argument, row: rows of (out, lse), of the query's gradient, of the key's and value's
        (0, 5): ([5], [5], [4, 5], [4, 5]),
        (1, 4): ([4, 5], [4, 5], [4, 5], [4, 5]),
        (2, 4): ([4, 5], [4, 5], [4, 5], [4, 5]),
        (4, 5): ([], [5], [4, 5], [4, 5]),
        (5, 5): ([], [5], [4, 5], [4, 5]),
    }
    for (position, row), (results, queries, keys, values) in cases.items():
        got = spoilt(position, row)
        touched = (results, results, queries, keys, values)
        for index, rows in enumerate(touched):
            others = [other for other in range(6) if other not in rows]
            np.testing.assert_array_equal(got[index][0, others], clean[index][0, others])
            assert np.isnan(got[index][0, rows]).all()


def test_one_key_gives_its_value_and_no_gradient_to_query_and_key():
    # flash-attention 334 (float16), pytorch 121558 (bfloat16, squares far above 65504)
    for dtype, number in ((jnp.float16, 3.0), (jnp.bfloat16, 133120.0)):
        x = jnp.full((1, 1, 1, 16), number, dtype)
        out, pull = jax.vjp(attention, x, x, x)
        np.testing.assert_array_equal(out, x)
        cotangent = harness.normal(x.shape, dtype)
        d_query, d_key, d_value = pull(cotangent)
        assert not jnp.any(d_query)
        assert not jnp.any(d_key)
        np.testing.assert_array_equal(d_value, cotangent)


def test_causal_sequences_of_several_lengths_with_one_key():
    # flash-attention 443: the last query of each sees the key, the others nothing
    lengths = jnp.array([76, 34, 146])
    query, key = harness.normal((3, 146, 1, 4)), harness.normal((3, 1, 1, 4), seed=1)
    value = harness.normal((3, 1, 1, 4), seed=2)

    @jax.jit
    def both(*arguments):
        options = {"is_causal": True, "query_seq_lengths": lengths}
        out, pull = jax.vjp(lambda *x: attention(*x, **options), *arguments)
        return out, *pull(jnp.ones_like(out))

    out, d_query, d_key, d_value = both(query, key, value)
    expected = np.zeros(out.shape, np.float32)
    for sequence, length in enumerate(lengths):
        expected[sequence, length - 1] = value[sequence, 0]
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    assert not jnp.any(d_query)
    assert not jnp.any(d_key)
    np.testing.assert_allclose(d_value, np.ones(value.shape), rtol=1e-6)


def test_a_hidden_key_has_no_weight_however_small_the_others_are():
    # lattice 361: with -10000 in place of -inf the hidden key won
    query, key = jnp.full((1, 1, 1, 1), -20000.0), jnp.array([1.0, 0.0]).reshape(1, 2, 1, 1)
    value = jnp.array([1.0, 100.0]).reshape(1, 2, 1, 1)
    mask = jnp.array([True, False]).reshape(1, 1, 1, 2)
    for strategy in ("flash", "unfused"):
        out = attention(query, key, value, mask=mask, scale=1.0, strategy=strategy)
        assert out.item() == 1.0


@pytest.mark.parametrize("strategy", ["flash", "unfused"])
def test_a_bias_of_minus_infinity_hides_under_a_soft_cap_too(strategy):
    # the cap would make -5 of it
    x = jnp.zeros((1, 2, 1, 1))
    value = jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1)
    bias = jnp.array([[0.0, -INF], [-INF, -INF]])

    @jax.jit
    def both(bias):
        options = {"logits_soft_cap": 5.0, "strategy": strategy}
        out, pull = jax.vjp(lambda bias: attention(x, x, value, bias, **options), bias)
        return out, *pull(jnp.ones_like(out))

    out, slope = both(bias)
    np.testing.assert_array_equal(out.ravel(), [1, 0])
    assert not jnp.any(slope)


def test_float16_products_beyond_its_range():
    # pytorch 119131: |q| 576, |k| 383; the product 784449 is no float16, its softmax is fine
    query = jnp.array([512.0, 263.0]).reshape(1, 1, 1, 2).astype(jnp.float16)
    key = jnp.array([[341.0, 174.0], [341.0, 174.0], [340.0, 174.0]]).reshape(1, 3, 1, 2)
    value = jnp.eye(3)[None, :, None].astype(jnp.float16)
    out, lse = attention(query, key.astype(jnp.float16), value, scale=0.01, return_residual=True)
    scores = np.array([512 * 341 + 263 * 174] * 2 + [512 * 340 + 263 * 174]) * 0.01
    weights = np.exp(scores - scores.max())
    np.testing.assert_allclose(out[0, 0, 0], weights / weights.sum(), rtol=2e-3, atol=1e-5)
    assert lse.item() == pytest.approx(scores[0] + np.log(weights.sum()), rel=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("keys", [4096, 65536])
def test_many_equal_keys_have_equal_weights(dtype, keys):
    # candle 3727, executorch 20090, ik_llama.cpp 1196: sums in a narrow dtype stall or overflow
    value = jnp.full((1, keys, 1, 1), 1.5, dtype)
    zeros = jnp.zeros((1, keys, 1, 1), dtype)
    out, lse = attention(zeros[:, :1], zeros, value, return_residual=True)
    assert out.item() == 1.5
    assert lse.item() == pytest.approx(np.log(keys), rel=1e-6)


def test_float16_bias_of_its_smallest_number_stays_finite():
    # transformers 17306: finfo.min - 16 is -inf in float16; here every key has the same score
    query, key = jnp.full((1, 1, 1, 1), -4, jnp.float16), jnp.full((1, 3, 1, 1), 4, jnp.float16)
    value = jnp.array([1.0, 2.0, 6.0], jnp.float16).reshape(1, 3, 1, 1)
    bias = jnp.full((1, 1, 1, 3), jnp.finfo(jnp.float16).min)
    out, lse = attention(query, key, value, bias, scale=1.0, return_residual=True)
    assert out.item() == 3.0
    assert lse.item() == pytest.approx(-65504 - 16 + np.log(3), rel=1e-6)


@pytest.mark.parametrize("reduction", ["combined", "separate"])
def test_parts_are_merged_relative_to_the_largest(reduction):
    # Parts along the leading axis. flashinfer 4051: two empty parts are one. ring-flash-attention
    # 30: -100 and 100 are 100. Weights 1 and 3 of 4. And 1e30 leaves no digit of log(2) + log(2).
    maximum = np.array([[-INF, -100, 0, -INF, 1e30], [-INF, 100, 0, 2, 1e30]], np.float32)
    denominator = np.array([[0, 1, 1, 0, 2], [0, 1, 3, 1, 2]], np.float32)
    out = np.array([[0, 1, 1, 0, 3], [0, 2, 5, 7, 5]], np.float32)[..., None]
    partition = Partition(mesh=harness.mesh("2"), axes=(("keys", ("x",)),))
    parts, whole = PartitionSpec("x"), PartitionSpec()

    def body(out, maximum, denominator):
        return merge(out[0], maximum[0], denominator[0], ("x",), reduction)

    merged = jax.jit(partition.map(body, (parts,) * 3, (whole,) * 3))
    out, maximum, denominator = merged(out, maximum, denominator)
    np.testing.assert_allclose(out[:, 0], [0, 2, 4, 7, 4], rtol=1e-6)
    np.testing.assert_allclose(maximum, np.array([-INF, 100, 0, 2, 1e30], np.float32))
    np.testing.assert_allclose(denominator, [0, 1, 4, 1, 4], rtol=1e-6)
    lse = log_of_sum(maximum, denominator)
    np.testing.assert_allclose(lse[:4], [-INF, 100, np.log(4), 2], rtol=1e-6)


def test_gradients_with_a_wide_bias_are_finite_and_right():
    # jax 32242: bfloat16 operands, float32 bias
    query, key, value = (harness.normal((2, 8, 2, 4), "bfloat16", seed=i) for i in range(3))
    bias, cotangent = harness.normal((1, 1, 8, 8), seed=4), harness.normal((2, 8, 2, 4), "bfloat16")
    arguments = {"query": query, "key": key, "value": value, "bias": bias}
    _, slopes = harness.value_and_gradients(attention, arguments, cotangent, unoptimized=True)
    _, exact = harness.reference(
        jax.jit(lambda **x: reference.attention(**x)[0]), arguments, cotangent
    )
    assert slopes["bias"].dtype == jnp.float32
    for name, slope in slopes.items():
        assert_close(slope, exact[name], dtype="bfloat16", length=8)
