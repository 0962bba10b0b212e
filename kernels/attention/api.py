"""The public function: checks, and the choice of strategy, partition and blocks.

The one idea: what does not fit together is refused here, by name, and everything else is decided
here, in a `Plan`; below, nothing asks what the user wrote.
"""

import functools
from typing import Literal, overload

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxcomet._compat import is_traced
from jaxcomet.kernels.attention.layout import Layout
from jaxcomet.kernels.attention.plan import (
    DIMENSIONS,
    STRATEGIES,
    Plan,
    block_size,
    usual_blocks,
)
from jaxcomet.kernels.attention.sharded import attend_sharded
from jaxcomet.kernels.attention.visibility import key_limits
from jaxcomet.kernels.devices import guarded
from jaxcomet.kernels.errors import KernelError, equal_sizes, floating, one_of, rank
from jaxcomet.kernels.partition import Axis, Partition, check_partitioner, partition
from jaxcomet.kernels.precision import Precision
from jaxcomet.kernels.statistics import REDUCTIONS

_NAME = "attention"


@overload
def attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    scale: float | Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | None = None,
    key_value_seq_lengths: Array | None = None,
    logits_soft_cap: float | Array | None = None,
    strategy: str = "flash",
    mesh: Mesh | None = None,
    axis: Axis = None,
    partitioner: str = "shard_map",
    block_q: int | None = None,
    block_k: int | None = None,
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
    precision: Precision = None,
    return_residual: Literal[False] = False,
) -> Array: ...


@overload
def attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    scale: float | Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | None = None,
    key_value_seq_lengths: Array | None = None,
    logits_soft_cap: float | Array | None = None,
    strategy: str = "flash",
    mesh: Mesh | None = None,
    axis: Axis = None,
    partitioner: str = "shard_map",
    block_q: int | None = None,
    block_k: int | None = None,
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
    precision: Precision = None,
    return_residual: Literal[True],
) -> tuple[Array, Array]: ...


def attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    scale: float | Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | None = None,
    key_value_seq_lengths: Array | None = None,
    logits_soft_cap: float | Array | None = None,
    strategy: str = "flash",
    mesh: Mesh | None = None,
    axis: Axis = None,
    partitioner: str = "shard_map",
    block_q: int | None = None,
    block_k: int | None = None,
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
    precision: Precision = None,
    return_residual: bool = False,
) -> Array | tuple[Array, Array]:
    """Scaled dot product attention, on one device or sharded over a mesh.

    Layout and names are those of `jax.nn.dot_product_attention`. What is computed, also for empty
    rows, NaN and infinities, is stated in `jaxcomet.kernels.attention.reference`.

    The strategies give the same result and differ in what they keep: "unfused" all scores and all
    exponentials, "partial" all exponentials, "flash" (arXiv:2205.14135, arXiv:2307.08691) a block
    of them, and "ring" (arXiv:2310.01889) a block, with keys and values going round the devices.
    The gradients are made from the output and two numbers a row, the scores being made once more:
    in one block for "unfused", in blocks of queries for "partial", else in blocks of queries and
    keys. Reverse mode only: `jax.jvp` is not defined.

    Over a mesh, `axis` names the mesh axes of "batch", "heads", "queries", "keys" and "sequence"
    (queries and keys together). "heads" is meant where only mesh axes are named, "sequence" for
    "ring". Splitting batch or heads exchanges nothing; queries, nothing but a sum of the gradients
    of key and value; keys, one merge; sequence gathers keys and values, except in a ring.
    Sizes that do not divide are padded. Key heads that do not divide are repeated where their
    groups can be divided instead, which costs memory, or else padded.

    Args:
      query: [B, T, N, H], or [T, N, H] (then no argument has a batch axis).
      key: [B, S, K, H]; N is a multiple of K, query head n reads key head n // (N // K).
      value: [B, S, K, Hv].
      bias: added to the scaled scores before the soft cap, broadcastable to [B, N, T, S]. One of
        -inf hides a key, as a mask does.
      mask: booleans broadcastable to [B, N, T, S], True where a key takes part.
      scale: factor of the scores, a Python number; None for 1 / sqrt(H).
      is_causal: whether query i sees key j only if j <= i + (S - T), or, with lengths, if
        j <= i + (key length - query length): the last query sees the last key.
      query_seq_lengths: integers [B], may be traced; later queries give 0.
      key_value_seq_lengths: integers [B], may be traced; later keys are not seen.
      logits_soft_cap: c in c * tanh(x / c), taken of the scaled and biased scores.
      strategy: "unfused", "partial", "flash" or "ring".
      mesh: the devices, or None for one.
      axis: mesh axes, or a mapping from dimensions to mesh axes; None for all of the mesh.
      partitioner: "shard_map", or "auto" for the same steps with XLA deciding what moves.
      block_q: most queries of a block; None for 256, less with many heads.
      block_k: most keys of a block; None for 512, less with many heads.
      reduction: where keys are split, maxima and sums "combined" in one all-gather, or "separate"
        in two all-reduces.
      wire_dtype: in which keys, values and sums of outputs and gradients travel; None as they are.
        Gradients in a ring always do: they would be rounded at each step.
      precision: of the matrix products.
      return_residual: whether lse, the logarithm of the sum of exponentials, is returned too.

    Returns:
      The output [B, T, N, Hv] in the dtype of the query; with `return_residual` also lse
      [B, T, N], float32 (float64 for float64), -inf for a query that sees nothing; its digits are
      those of the values, since the exponentials that are summed are rounded to their dtype. Both
      can be differentiated.

    Raises:
      KernelError: arguments that do not fit together; the message names them.

    Example:
      >>> q = jnp.zeros((1, 4, 2, 8))
      >>> out, lse = attention(q, q, q, is_causal=True, return_residual=True)
      >>> print(jnp.round(jnp.exp(lse[0, :, 0])))  # each query sees one key more
      [1. 2. 3. 4.]
    """
    one_of(_NAME, "strategy", strategy, STRATEGIES)
    check_partitioner(_NAME, partitioner, mesh)
    one_of(_NAME, "reduction", reduction, REDUCTIONS)
    default = "sequence" if strategy == "ring" else "heads"
    split = partition(_NAME, mesh, axis, dimensions=DIMENSIONS, default=default)
    _check_partition(strategy, partitioner, split)
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    batched = query.ndim == 4
    _check_arrays(batched, query=query, key=key, value=value)
    if not batched:
        query, key, value = query[None], key[None], value[None]
    batch, queries, heads, head_dim = query.shape
    keys = key.shape[1]
    shape = (batch, heads, queries, keys)
    bias, mask = (_broadcastable(name, x, shape) for name, x in (("bias", bias), ("mask", mask)))
    lengths = tuple(
        _checked_lengths(name, x, batch)
        for name, x in (
            ("query_seq_lengths", query_seq_lengths),
            ("key_value_seq_lengths", key_value_seq_lengths),
        )
    )
    usual = usual_blocks(-(-batch // split.shards("batch")) * -(-heads // split.shards("heads")))
    blocks = tuple(
        block_size(
            _checked_block(name, size, most), -(-whole // split.shards(dimension, "sequence"))
        )
        for name, size, most, whole, dimension in (
            ("block_q", block_q, usual[0], queries, "queries"),
            ("block_k", block_k, usual[1], keys, "keys"),
        )
    )
    plan = Plan(
        strategy=strategy,
        partition=split,
        automatic=partitioner == "auto",
        reduction=reduction,
        wire_dtype=None if wire_dtype is None else jnp.dtype(wire_dtype).name,
        scale=head_dim**-0.5 if scale is None else _number("scale", scale),
        soft_cap=None if logits_soft_cap is None else _cap(logits_soft_cap),
        precision=precision,
        block_q=blocks[0],
        block_k=blocks[1],
    )
    out, lse = guarded(_attend(plan, is_causal, query, key, value, bias, mask, *lengths), mesh)
    if not batched:
        out, lse = out[0], lse[0]
    return (out, lse) if return_residual else out


@functools.partial(jax.jit, static_argnums=(0, 1))
def _attend(
    plan: Plan,
    is_causal: bool,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    query_lengths: Array | None,
    key_lengths: Array | None,
) -> tuple[Array, Array]:
    """Output and lse of checked arguments, which are grouped and padded on the way."""
    batch, queries, heads, _ = query.shape
    keys, key_heads = key.shape[1:3]
    layout = Layout(
        plan=plan, batch=batch, queries=queries, keys=keys, heads=heads, key_heads=key_heads
    )
    limits = key_limits(
        batch,
        queries,
        keys,
        is_causal=is_causal,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
    )
    out, lse = attend_sharded(
        plan,
        layout.query(query),
        layout.key(key),
        layout.key(value),
        layout.scores(bias),
        layout.scores(mask),
        layout.limits(limits),
    )
    return layout.result(out, lse)


def _check_partition(strategy: str, partitioner: str, split: Partition) -> None:
    """Refuses combinations of dimensions and strategies that have no meaning."""
    one_sided = [name for name in ("queries", "keys") if split.names(name)]
    if split.names("sequence") and one_sided:
        raise KernelError(
            f"{_NAME}: axis: got sequence together with {' and '.join(one_sided)}; sequence is "
            "queries and keys at once; name sequence alone, or queries and keys"
        )
    if strategy != "ring":
        return
    if one_sided or (split.mesh is not None and not split.names("sequence")):
        got = " and ".join(dimension for dimension, _ in split.axes) or "nothing"
        raise KernelError(
            f'{_NAME}: axis: got {got} split with strategy "ring"; expected sequence, and batch or '
            "heads beside it"
        )
    if partitioner == "auto":
        raise KernelError(
            f'{_NAME}: partitioner: got "auto" with strategy "ring", whose exchanges are its '
            'point; use "shard_map", or strategy="flash"'
        )


def _check_arrays(batched: bool, **arrays: Array) -> None:
    """Refuses queries, keys and values whose shapes or dtypes do not fit together."""
    lead = "B, " if batched else ""
    words = {"query": f"[{lead}T, N, H]", "key": f"[{lead}S, K, H]", "value": f"[{lead}S, K, Hv]"}
    for name, array in arrays.items():
        allowed = range(3, 5) if name == "query" else 3 + batched
        rank(_NAME, name, array, allowed, words[name])
    floating(_NAME, **arrays)

    def places(letter: str) -> list[tuple[str, int]]:
        found = []
        for name, array in arrays.items():
            letters = words[name].strip("[]").split(", ")
            if letter in letters:
                axis = letters.index(letter)
                found.append((f"{name} axis {axis} ({letter})", array.shape[axis]))
        return found

    for letter in ("B", "S", "K", "H") if batched else ("S", "K", "H"):
        equal_sizes(_NAME, *places(letter))
    heads, key_heads = arrays["query"].shape[-2], arrays["key"].shape[-2]
    if heads % key_heads:
        raise KernelError(
            f"{_NAME}: got {heads} query heads and {key_heads} key heads; expected a multiple of "
            "the key heads"
        )


def _broadcastable(name: str, x: Array | None, shape: tuple[int, ...]) -> Array | None:
    """A bias or mask with four axes, each 1 or that of the scores."""
    if x is None:
        return None
    x = jnp.asarray(x)
    if name == "mask" and x.dtype != jnp.bool_:
        raise KernelError(
            f"{_NAME}: mask: got dtype {x.dtype}; expected booleans, True where a key takes part; "
            "give numbers that are added to the scores as bias="
        )
    if name == "bias":
        floating(_NAME, bias=x)
    full = (1,) * (len(shape) - x.ndim) + x.shape
    if len(full) > len(shape) or any(
        size not in (1, whole) for size, whole in zip(full, shape, strict=True)
    ):
        raise KernelError(
            f"{_NAME}: {name}: got shape {x.shape}; expected one that broadcasts to [B, N, T, S] = "
            f"{shape}"
        )
    return x.reshape(full)


def _checked_lengths(name: str, lengths: Array | None, batch: int) -> Array | None:
    """Lengths as integers [B]."""
    if lengths is None:
        return None
    lengths = jnp.asarray(lengths)
    if lengths.shape not in ((batch,), ()) or not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise KernelError(
            f"{_NAME}: {name}: got {lengths.dtype} {lengths.shape}; expected integers [B] = "
            f"({batch},)"
        )
    return jnp.broadcast_to(lengths, (batch,))


def _checked_block(name: str, size: int | None, usual: int) -> int:
    """A block size, or the usual one."""
    if size is None:
        return usual
    if size < 1:
        raise KernelError(f"{_NAME}: {name}: got {size}; expected at least 1, or None")
    return size


def _number(name: str, x: float | Array) -> float:
    """A number that is part of the program."""
    if is_traced(x):
        raise KernelError(
            f"{_NAME}: {name}: got a traced array; expected a Python number; multiply the query by "
            "a traced factor, and give scale=1.0"
        )
    return float(x)


def _cap(x: float | Array) -> float:
    """A soft cap, which is positive."""
    cap = _number("logits_soft_cap", x)
    if cap <= 0:
        raise KernelError(
            f"{_NAME}: logits_soft_cap: got {cap}; expected a positive number, or None for no cap"
        )
    return cap
