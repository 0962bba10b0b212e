"""Attention over the devices of a mesh, and its derivative.

The one idea: each device runs a strategy on its own queries and keys, and what is exchanged depends
on the dimension that is split:

* batch, heads: nothing.
* queries: nothing; the gradients of key and value are summed.
* keys: the results are merged (`merge`); the gradient of the query is summed.
* sequence: key and value are gathered, their gradients summed and scattered; or they go round
  (strategy "ring").

The derivative is declared here, outside shard_map: forward and backward are two plain bodies, and
differentiation never passes through either. What is kept is the arguments, the output, and two
numbers a row.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array

from jaxcomet.kernels.attention import ring
from jaxcomet.kernels.attention.backward import (
    Cotangents,
    Gradients,
    accumulated,
    zero_gradients,
)
from jaxcomet.kernels.attention.blocks import operands
from jaxcomet.kernels.attention.forward import FORWARD, Kept
from jaxcomet.kernels.attention.merge import log_of_sum, merge
from jaxcomet.kernels.attention.plan import KEY, LIMITS, QUERY, ROWS, Dimensions, Plan
from jaxcomet.kernels.attention.visibility import part_limits
from jaxcomet.kernels.collectives import (
    Names,
    all_reduce_sum,
    gather_blocks,
    index,
    reduce_scatter,
)


def _attend(
    plan: Plan,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    limits: Array,
) -> tuple[Array, Array]:
    """Attention of arrays whose sizes the partition and its blocks divide.

    Args:
      plan: the decisions.
      query: [B, T, K, G, H].
      key: [B, S, K, H].
      value: [B, S, K, Hv].
      bias: [B or 1, K or 1, G or 1, T or 1, S or 1], or None.
      mask: booleans of such a shape, or None.
      limits: int32 [B, T], below which key each query sees.

    Returns:
      Output [B, T, K, G, Hv] in the dtype of the query and lse [B, T, K, G] in the accumulator's.
    """
    return _attend_fwd(plan, query, key, value, bias, mask, limits)[0]


def _attend_fwd(plan: Plan, *arguments: Any) -> tuple[tuple[Array, Array], tuple[Any, ...]]:
    """Output and lse, and what the gradients need."""
    body = functools.partial(_forward, plan)
    dimensions = _dimensions(plan, *arguments[3:5])
    out, maximum, denominator = _run(plan, body, arguments, dimensions, (QUERY, ROWS, ROWS))
    kept = (*arguments, out, maximum, denominator)
    return (out, log_of_sum(maximum, denominator)), kept


def _attend_bwd(plan: Plan, kept: tuple[Any, ...], cotangents: tuple[Array, Array]):
    bias, mask = kept[3:5]
    # Asked of the whole bias: a device's part may have size 1 where the whole does not broadcast.
    bias_names = () if bias is None else plan.broadcast_names(bias.shape)
    bias_dimensions = () if bias is None else plan.score_dimensions(bias.shape)
    gradients = _run(
        plan,
        functools.partial(_backward, plan, bias_names),
        (*kept, *cotangents),
        (*_dimensions(plan, bias, mask), QUERY, ROWS, ROWS, QUERY, ROWS),
        (QUERY, KEY, KEY, bias_dimensions),
    )
    return (*gradients, None, None)


attend_sharded = jax.custom_vjp(_attend, nondiff_argnums=(0,))
"""Attention of whole arrays, with its derivative; arguments and results as of `_attend`."""

attend_sharded.defvjp(_attend_fwd, _attend_bwd)


def _dimensions(plan: Plan, bias: Array | None, mask: Array | None) -> tuple[Dimensions, ...]:
    """Of the arguments of `_attend`, in their order; none of one that is not there."""
    scores = (() if x is None else plan.score_dimensions(x.shape) for x in (bias, mask))
    return (QUERY, KEY, KEY, *scores, LIMITS)


def _run(
    plan: Plan,
    body: Callable[..., tuple[Array | None, ...]],
    arguments: Sequence[Array | None],
    dimensions: Sequence[Dimensions],
    result: Sequence[Dimensions],
) -> Any:
    """`body` on each device's part, or on all of it with its shardings stated to XLA."""
    split = plan.partition
    if not plan.automatic:
        there = [x is not None for x in arguments]

        def of_those(*arrays: Array) -> tuple[Array | None, ...]:
            rest = iter(arrays)
            return body(*(next(rest) if given else None for given in there))

        in_specs, out_specs = (
            tuple(split.spec(*axes) for axes in arrays) for arrays in (dimensions, result)
        )
        in_specs = tuple(spec for spec, given in zip(in_specs, there, strict=True) if given)
        return split.map(of_those, in_specs, out_specs)(*(x for x in arguments if x is not None))

    def constrained(
        arrays: Sequence[Array | None], dimensions: Sequence[Dimensions]
    ) -> tuple[Array | None, ...]:
        return tuple(
            None if x is None else split.constrain(x, *axes)
            for x, axes in zip(arrays, dimensions, strict=True)
        )

    return constrained(body(*constrained(arguments, dimensions)), result)


def _forward(
    plan: Plan,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    limits: Array,
) -> Kept:
    """What one device keeps of its queries."""
    if plan.strategy == "ring":
        return ring.forward(plan, query, key, value, bias, mask, limits)
    names = plan.local.names("keys")
    key, value, limits = _own_keys(plan, key, value, limits)
    whole = operands(query, key, value, bias, mask, limits)
    wide = whole.accumulator if names else query.dtype  # rounded once, after the merge
    kept = FORWARD[plan.strategy](plan.rule, whole, plan.block_q, plan.block_k, wide)
    out, maximum, denominator = merge(*kept, names, plan.reduction, plan.wire_dtype)
    return out.astype(query.dtype), maximum, denominator


def _backward(
    plan: Plan,
    bias_names: Names,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    limits: Array,
    out: Array,
    maximum: Array,
    denominator: Array,
    d_out: Array,
    d_lse: Array,
) -> tuple[Array, Array, Array, Array | None]:
    """One device's part of the gradients of query, key, value and bias."""
    given = Cotangents(out=out, maximum=maximum, denominator=denominator, d_out=d_out, d_lse=d_lse)
    if plan.strategy == "ring":
        sums = ring.backward(plan, query, key, value, bias, mask, limits, given)
    else:
        wide_key, wide_value, limits = _own_keys(plan, key, value, limits)
        whole = operands(query, wide_key, wide_value, bias, mask, limits)
        rule = plan.rule
        block_q, block_k = plan.backward_blocks
        if plan.strategy != "flash":
            block_k = wide_key.shape[1]
        if plan.strategy == "unfused":
            block_q = query.shape[1]
        sums = accumulated(rule, whole, given, zero_gradients(rule, whole), block_q, block_k)
        sums = _shared_sums(plan, sums)
    d_bias = None
    if bias is not None and sums.bias is not None:
        d_bias = all_reduce_sum(sums.bias, bias_names).astype(bias.dtype)
    return (
        (sums.query * plan.scale).astype(query.dtype),
        (sums.key * plan.scale).astype(key.dtype),
        sums.value.astype(value.dtype),
        d_bias,
    )


def _own_keys(plan: Plan, key: Array, value: Array, limits: Array) -> tuple[Array, Array, Array]:
    """The keys and values that this device attends to, and the limits among them."""
    sequence, names = plan.local.names("sequence"), plan.local.names("keys")
    if sequence:
        key, value = (_gathered(plan, x, sequence) for x in (key, value))
    start = index(names) * key.shape[1]
    return key, value, part_limits(limits, start, key.shape[1])


def _gathered(plan: Plan, x: Array, names: tuple[str, ...]) -> Array:
    """All of a split sequence, having travelled in the dtype of the wire."""
    if plan.wire_dtype is None:
        return gather_blocks(x, names, 1)
    return gather_blocks(x.astype(plan.wire_dtype), names, 1).astype(x.dtype)


def _shared_sums(plan: Plan, sums: Gradients) -> Gradients:
    """Each device's sums made those of all devices that contribute to the same gradient."""
    local, wire = plan.local, plan.wire_dtype
    sequence, queries, keys = (local.names(name) for name in ("sequence", "queries", "keys"))

    def of_keys(x: Array) -> Array:
        return all_reduce_sum(reduce_scatter(x, sequence, 1, wire), queries, wire)

    return Gradients(
        query=all_reduce_sum(sums.query, keys, wire),
        key=of_keys(sums.key),
        value=of_keys(sums.value),
        bias=sums.bias,
    )
