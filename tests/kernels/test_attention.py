"""Attention: the reference by hand, and every strategy and split against it in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomet.kernels.attention import attention, reference
from tests.kernels import harness
from tests.kernels.attention_cases import (
    MEANINGS,
    SPLITS,
    assert_equals_reference,
    masked,
    operands,
)

STRATEGIES = ("unfused", "partial", "flash", "ring")
SEPARATE = {"reduction": "separate"}

plain = jax.jit(reference.attention, static_argnames=("is_causal", "scale", "logits_soft_cap"))


def rows_of(logits, **options):
    """Attention of one query of width 1 to keys with these scores; values are unit vectors."""
    logits = jnp.asarray(logits, jnp.float32)
    key = logits.reshape(1, -1, 1, 1)
    value = jnp.eye(logits.size)[None, :, None]
    out, lse = plain(jnp.ones((1, 1, 1, 1)), key, value, scale=1.0, **options)
    return np.asarray(out).ravel(), float(lse[0, 0, 0])


def test_reference_gives_weights_worked_out_by_hand():
    # exp(log 1), exp(log 2), exp(log 5) = 1, 2, 5 of 8
    weights, lse = rows_of(np.log([1.0, 2.0, 5.0]))
    np.testing.assert_allclose(weights, [0.125, 0.25, 0.625], rtol=1e-6)
    assert lse == pytest.approx(np.log(8))
    # the derivative of lse is the weights
    key, one = jnp.log(jnp.array([1.0, 2.0, 5.0])).reshape(1, 3, 1, 1), jnp.ones((1, 1, 1, 1))
    slope = jax.jit(jax.grad(lambda key: plain(one, key, key, scale=1.0)[1].sum()))(key)
    np.testing.assert_allclose(slope.ravel(), weights, rtol=1e-6)


def test_reference_caps_after_scale_and_bias():
    # 2 tanh((log 3 + log 3) / 2) = 2 (9 - 1/9... ) by tanh(log 3) = (3 - 1/3) / (3 + 1/3) = 0.8
    weights, lse = rows_of(
        [np.log(3.0)], bias=jnp.full((1, 1, 1, 1), np.log(3.0)), logits_soft_cap=2.0
    )
    np.testing.assert_allclose(weights, [1.0])
    assert lse == pytest.approx(1.6)


def test_reference_aligns_causality_at_the_last_key():
    # equal scores and unit values: the output shows which keys were seen, and lse how many
    value = jnp.eye(4)[None, :, None]
    query, key = jnp.zeros((1, 3, 1, 1)), jnp.zeros((1, 4, 1, 1))
    out, lse = plain(query, key, value, is_causal=True)
    half, third, quarter = [1 / 2] * 2 + [0] * 2, [1 / 3] * 3 + [0], [1 / 4] * 4
    np.testing.assert_allclose(out[0, :, 0], [half, third, quarter], rtol=1e-6)
    np.testing.assert_allclose(lse[0, :, 0], np.log([2, 3, 4]), rtol=1e-6)
    # 2 queries and 3 keys are real: the second sees all three, the third query nothing
    out, lse = plain(
        query,
        key,
        value,
        is_causal=True,
        query_seq_lengths=jnp.array([2]),
        key_value_seq_lengths=jnp.array([3]),
    )
    np.testing.assert_allclose(out[0, :, 0], [half, third, [0] * 4], rtol=1e-6)
    np.testing.assert_allclose(lse[0, :, 0], [np.log(2), np.log(3), -np.inf], rtol=1e-6)
    # more queries than keys: the first two see nothing
    _, lse = plain(jnp.zeros((1, 6, 1, 1)), key, value, is_causal=True)
    np.testing.assert_allclose(np.exp(lse[0, :, 0]), [0, 0, 1, 2, 3, 4], rtol=1e-6)


@pytest.mark.parametrize("is_causal", [pytest.param(False, marks=pytest.mark.slow), True])
def test_reference_agrees_with_jax_in_value_and_gradient(is_causal):
    arguments = operands(queries=9, keys=9)
    mask = masked(9, 9).at[0, :, 3].set(True)  # jax gives an empty row the mean of all values
    mask = mask | jnp.eye(9, dtype=bool)
    cotangent = harness.normal((2, 9, 4, 6)).at[..., 5].set(0)  # jax's lse has no derivative
    # with lengths jax aligns causality at the first key
    lengths = None if is_causal else jnp.array([9, 7], jnp.int32)

    def ours(query, key, value, bias):
        out, lse = reference.attention(
            query, key, value, bias, mask, is_causal=is_causal, key_value_seq_lengths=lengths
        )
        return jnp.concatenate([out, lse[..., None]], axis=-1)[:, :7]

    def theirs(query, key, value, bias):
        # bias with batch and heads, equal widths, and lse are what jax has
        out, lse = jax.nn.dot_product_attention(
            query,
            key,
            jnp.pad(value, ((0, 0),) * 3 + ((0, 3),)),
            bias,
            mask,
            is_causal=is_causal,
            key_value_seq_lengths=lengths,
            return_residual=True,
        )
        return jnp.concatenate([out[..., :5], lse[..., None]], axis=-1)[:, :7]

    got, our_slopes = harness.reference(jax.jit(ours), arguments, cotangent[:, :7])
    expected, their_slopes = harness.reference(jax.jit(theirs), arguments, cotangent[:, :7])
    # jax takes the softmax of float64 scores in float32
    np.testing.assert_allclose(got, expected, atol=2e-6)
    for name, slope in our_slopes.items():
        np.testing.assert_allclose(slope, their_slopes[name], atol=1e-5)


CASES = [
    # strategy, split, dtype, meaning, sizes, options: each of them at least once
    ("flash", None, "float32", "capped", {}, {}),
    # 2 key heads for 8 devices: repeated four times
    ("flash", "heads", "bfloat16", "causal", {"heads": 8}, {}),
    ("flash", "heads-keys", "float16", "causal", {"bias": (2, 1, 21, 1)}, SEPARATE),
    ("flash", "heads-keys", "float32", "lengths", {}, {"partitioner": "auto"}),
    ("partial", "queries-keys", "float32", "plain", {"bias": (1, 1, 21, 27)}, {}),
    # 3 key heads for 4 devices: repeats do not help, one is padded
    ("unfused", "batch-heads", "float32", "capped", {"heads": 6, "key_heads": 3}, {}),
    ("ring", "sequence", "float32", "lengths", {"bias": (27,)}, {}),
]
MORE = [
    ("flash", "queries", "float32", "lengths", {"bias": (27,)}, {}),
    ("flash", "keys", "float32", "capped", {}, {}),
    ("flash", "batch-sequence", "float32", "lengths", {}, {}),
    ("unfused", "keys", "float16", "lengths", {}, SEPARATE),
    ("ring", "batch-sequence", "float32", "plain", {"bias": (1, 4, 1, 27)}, {}),
    ("ring", "both-sequence", "bfloat16", "causal", {}, {}),
]


def execution_of(strategy, split, **options):
    """Options of the kernel: blocks so small that each device has several."""
    blocks = {"strategy": strategy, "block_q": 8, "block_k": 8, **options}
    if split is None:
        return blocks
    mesh, axis = SPLITS[split]
    return {**blocks, "mesh": harness.mesh(mesh), "axis": axis}


@pytest.mark.parametrize(
    ("strategy", "split", "dtype", "name", "sizes", "options"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
    ids=str,
)
def test_value_lse_and_gradients_equal_the_reference(strategy, split, dtype, name, sizes, options):
    execution = execution_of(strategy, split, **options)
    assert_equals_reference(operands(dtype, **sizes), name, execution)


CROSS = [
    (strategy, split, dtype)
    for strategy in STRATEGIES
    for split in (
        (None, "sequence", "sequence-4", "sequence-8", "batch-sequence", "both-sequence")
        if strategy == "ring"
        else (None, "sequence", "keys", "heads", "heads-keys")
    )
    for dtype in harness.DTYPES
]
CROSS += [("flash", split, "bfloat16") for split in ("queries", "batch-heads", "queries-keys")]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "split", "dtype"), CROSS, ids=str)
def test_every_strategy_on_every_mesh_in_every_dtype(strategy, split, dtype):
    names = (*MEANINGS, "lengths")
    name = names[CROSS.index((strategy, split, dtype)) % len(names)]
    assert_equals_reference(operands(dtype), name, execution_of(strategy, split))


@pytest.mark.parametrize(
    ("strategy", "split"),
    [("flash", "heads"), pytest.param("ring", "both-sequence", marks=pytest.mark.slow)],
)
def test_fewer_queries_keys_and_heads_than_devices(strategy, split):
    arguments = operands(queries=1, keys=3, heads=3, key_heads=1)
    execution = execution_of(strategy, split)
    assert_equals_reference(arguments, "causal", execution, has_mask=False)


def test_arguments_without_batch_and_the_forms_of_the_result():
    arguments = operands(queries=5, keys=7)
    query, key, value = (arguments[name][0] for name in ("query", "key", "value"))
    out, lse = attention(query, key, value, arguments["bias"][0], return_residual=True)
    expected, expected_lse = plain(query[None], key[None], value[None], arguments["bias"])
    np.testing.assert_allclose(out, expected[0], atol=2e-6)
    np.testing.assert_allclose(lse, expected_lse[0], atol=2e-6)
    only = attention(query, key, value, arguments["bias"][0])
    np.testing.assert_array_equal(only, out)


@pytest.mark.slow
def test_float64_stays_float64():
    with harness.enable_x64():
        arguments = operands("float64", queries=5, keys=7)
        execution = execution_of("ring", "sequence")
        assert_equals_reference(arguments, "causal", execution, has_mask=False)
