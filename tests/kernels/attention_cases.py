"""What the tests of attention share: arguments, and value, lse and gradients of one program."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcomet._compat import enable_x64
from jaxcomet.kernels.attention import attention, reference
from tests.kernels import harness
from tests.tolerance import assert_close

SPLITS = {
    "heads": ("8", {"heads": "x"}),
    "queries": ("8", {"queries": "x"}),
    "keys": ("4", {"keys": "x"}),
    "sequence": ("2", {"sequence": "x"}),
    "sequence-4": ("4", {"sequence": "x"}),
    "sequence-8": ("8", {"sequence": "x"}),
    "batch-heads": ("2x4", {"batch": "x", "heads": "y"}),
    "heads-keys": ("2x4", {"heads": "x", "keys": "y"}),
    "queries-keys": ("2x4", {"queries": "x", "keys": "y"}),
    "batch-sequence": ("2x4", {"batch": "x", "sequence": "y"}),
    "both-sequence": ("2x4", {"sequence": ("x", "y")}),
}
"""Meshes of 2, 4, 8 and 2x4 devices, and every dimension that can be split."""


def operands(
    dtype="float32", *, queries=21, keys=27, heads=4, key_heads=2, bias=None, seed=0
) -> dict[str, Array]:
    """Query, key, value and a bias, one for each head by default; no size divides a mesh."""
    batch, width, value_width = 2, 8, 5
    return {
        "query": harness.normal((batch, queries, heads, width), dtype, seed=seed + 1),
        "key": harness.normal((batch, keys, key_heads, width), dtype, seed=seed + 2),
        "value": harness.normal((batch, keys, key_heads, value_width), dtype, seed=seed + 3),
        "bias": harness.normal(bias or (1, heads, queries, keys), dtype, seed=seed + 4),
    }


def masked(queries=21, keys=27) -> Array:
    """A mask for both batches, where one query sees nothing and one nothing at first."""
    mask = np.random.default_rng(5).random((2, 1, queries, keys)) > 0.3
    mask[0, :, 3] = False
    mask[1, :, 4, : keys // 2] = False
    return jnp.asarray(mask)


MEANINGS = {
    "plain": {},
    "causal": {"is_causal": True},
    "capped": {"is_causal": True, "logits_soft_cap": 1.5, "scale": 0.6},
}


@functools.cache
def meaning(name: str) -> dict[str, Any]:
    """Options that change the result."""
    if name != "lengths":
        return MEANINGS[name]
    lengths = {"query": [21, 9], "key_value": [5, 27]}
    return {"is_causal": True} | {f"{k}_seq_lengths": jnp.array(v) for k, v in lengths.items()}


def joined(function, mask=None, **options):
    """Attention with lse as one more column, so that both are in one array."""

    def call(query, key, value, bias=None):
        out, lse = function(query, key, value, bias, mask, **options)
        return jnp.concatenate([out.astype(lse.dtype), lse[..., None]], axis=-1)

    return call


@functools.cache
def _reference(name: str, has_mask: bool):
    """Value and gradients of the reference as one program, compiled once for each meaning."""

    def both(arguments, cotangent):
        mask = masked() if has_mask else None
        function = joined(reference.attention, mask, **meaning(name))
        value, pull = jax.vjp(lambda arguments: function(**arguments), arguments)
        return value, pull(cotangent)[0]

    return jax.jit(both, compiler_options={"xla_backend_optimization_level": 0})


def assert_equals_reference(arguments, name, execution, *, has_mask=True):
    """Output, lse and all gradients of a strategy against float64.

    Args:
      arguments: query, key, value and perhaps bias.
      name: of a meaning.
      execution: options of the kernel alone.
      has_mask: whether the mask of `masked` is given.
    """
    query, value = arguments["query"], arguments["value"]
    dtype, length = query.dtype, arguments["key"].shape[1]
    shape = (*query.shape[:-1], value.shape[-1] + 1)
    # Representable in the dtype, since the cotangent of the output is rounded to it.
    wide = jnp.promote_types(dtype, jnp.float32)
    cotangent = harness.normal(shape, dtype, seed=6).astype(wide)
    mask = masked() if has_mask else None
    got, slopes = harness.value_and_gradients(
        joined(attention, mask, return_residual=True, **meaning(name), **execution),
        arguments,
        cotangent,
        unoptimized=True,
    )
    with enable_x64():
        wide_arguments = {key: jnp.asarray(x, jnp.float64) for key, x in arguments.items()}
        cotangent = jnp.asarray(cotangent, jnp.float64)
        expected, exact = _reference(name, has_mask)(wide_arguments, cotangent)
    for part in (np.s_[..., :-1], np.s_[..., -1]):  # the output; lse, of rounded exponentials
        assert_close(got[part], expected[part], dtype=dtype, length=length)
    for argument, slope in slopes.items():
        assert slope.dtype == dtype
        assert_close(slope, exact[argument], dtype=dtype, length=length)
