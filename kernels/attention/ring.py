"""Attention with queries, keys and values split over the sequence, and keys that go round.

The one idea (Liu, Zaharia and Abbeel, arXiv:2310.01889): each device keeps its queries and the
state of their rows; the blocks of keys and values go from device to device, the next one being sent
while the present one is used, so that no device ever holds more than two. In the backward pass the
gradients of a block of keys travel with it and come home after a full round.

Step i of device d works on the keys of device d - i. What causality hides is skipped: a block of
queries loops over the blocks of keys below its limit, of which a later device's keys have none.
"""

import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcomet.kernels.attention.backward import (
    Cotangents,
    Gradients,
    accumulated,
    zero_gradients,
)
from jaxcomet.kernels.attention.blocks import (
    Operands,
    RowState,
    attend,
    empty_state,
    operands,
    part,
    query_block,
)
from jaxcomet.kernels.attention.forward import Kept, results
from jaxcomet.kernels.attention.plan import Plan
from jaxcomet.kernels.attention.visibility import part_limits
from jaxcomet.kernels.collectives import Names, index

Blocks = TypeVar("Blocks")


def forward(
    plan: Plan,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    limits: Array,
) -> Kept:
    """What one device keeps of its queries; shapes as in `Operands`."""
    rule = plan.rule
    names, devices = _ring(plan)
    travelling = _travelling(plan, key, value)

    def use(state: RowState, blocks: tuple[Array, Array], step: Array | int) -> RowState:
        whole = _met(plan, query, blocks, (key.dtype, value.dtype), bias, mask, limits, step)

        def rows_step(number: Array, state: RowState) -> RowState:
            start = number * plan.block_q
            rows = query_block(whole, start, plan.block_q)
            old = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, plan.block_q, 3), state)
            new = attend(rule, whole, rows, old, plan.block_k)
            return jax.tree.map(
                lambda x, block: lax.dynamic_update_slice_in_dim(x, block, start, 3), state, new
            )

        return lax.fori_loop(0, query.shape[1] // plan.block_q, rows_step, state)

    def step(
        carry: tuple[RowState, tuple[Array, Array]], number: Array
    ) -> tuple[tuple[RowState, tuple[Array, Array]], None]:
        state, blocks = carry
        following = _sent(blocks, names, devices)
        return (use(state, blocks, number), following), None

    whole = operands(query, key, value, bias, mask, limits)
    state = empty_state(rule, whole, query.shape[1])
    (state, travelling), _ = lax.scan(
        step, (state, travelling), jnp.arange(devices - 1, dtype=jnp.int32)
    )
    state = use(state, travelling, devices - 1)
    return results(state, query.dtype)


def backward(
    plan: Plan,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    limits: Array,
    given: Cotangents,
) -> Gradients:
    """One device's gradients: of its queries, its own keys and values, and its part of the bias."""
    rule = plan.rule
    names, devices = _ring(plan)

    def use(sums: Gradients, blocks: tuple[Array, Array], step: Array | int) -> Gradients:
        whole = _met(plan, query, blocks, (key.dtype, value.dtype), bias, mask, limits, step)
        start = _source(names, devices, step) * key.shape[1]
        own = sums if bias is None else _part_of_bias(sums, start, key.shape[1])
        own = accumulated(rule, whole, given, own, *plan.backward_blocks)
        return own if bias is None else _whole_bias(own, sums, start)

    def send_sums(sums: Gradients) -> Gradients:
        d_key, d_value = _sent((sums.key, sums.value), names, devices)
        return dataclasses.replace(sums, key=d_key, value=d_value)

    def step(
        carry: tuple[Gradients, tuple[Array, Array]], number: Array
    ) -> tuple[tuple[Gradients, tuple[Array, Array]], None]:
        sums, blocks = carry
        following = _sent(blocks, names, devices)
        return (send_sums(use(sums, blocks, number)), following), None

    whole = operands(query, key, value, bias, mask, limits)
    carry = (zero_gradients(rule, whole), _travelling(plan, key, value))
    (sums, blocks), _ = lax.scan(step, carry, jnp.arange(devices - 1, dtype=jnp.int32))
    return send_sums(use(sums, blocks, devices - 1))


def _ring(plan: Plan) -> tuple[Names, int]:
    """The mesh axes of the ring and how many devices it has."""
    return plan.local.names("sequence"), plan.local.shards("sequence")


def _source(names: Names, devices: int, step: Array | int) -> Array:
    """Whose keys this device has at a step."""
    return jnp.asarray(index(names) - step, jnp.int32) % devices


def _travelling(plan: Plan, key: Array, value: Array) -> tuple[Array, Array]:
    """Keys and values as they travel: rounded once, not at each step."""
    if plan.wire_dtype is None:
        return key, value
    return key.astype(plan.wire_dtype), value.astype(plan.wire_dtype)


def _sent(blocks: Blocks, names: Names, devices: int) -> Blocks:
    """What the device before had."""
    if devices == 1:
        return blocks
    ring = [(device, (device + 1) % devices) for device in range(devices)]
    return jax.tree.map(lambda x: lax.ppermute(x, names, ring), blocks)


def _met(
    plan: Plan,
    query: Array,
    blocks: tuple[Array, Array],
    dtypes: tuple[jnp.dtype, jnp.dtype],
    bias: Array | None,
    mask: Array | None,
    limits: Array,
    step: Array | int,
) -> Operands:
    """The queries of this device and the keys that are here at a step."""
    names, devices = _ring(plan)
    key, value = (x.astype(dtype) for x, dtype in zip(blocks, dtypes, strict=True))
    keys = key.shape[1]
    start = _source(names, devices, step) * keys
    bias, mask = (None if x is None else part(x, start, keys, 4) for x in (bias, mask))
    return operands(query, key, value, bias, mask, part_limits(limits, start, keys))


def _part_of_bias(sums: Gradients, start: Array, keys: int) -> Gradients:
    """The sums with that part of the bias which belongs to the keys from `start` on."""
    assert sums.bias is not None
    bias = part(sums.bias, start, keys, 4)
    return dataclasses.replace(sums, bias=bias)


def _whole_bias(own: Gradients, sums: Gradients, start: Array) -> Gradients:
    """The sums with such a part put back in its place."""
    assert own.bias is not None
    assert sums.bias is not None
    bias = own.bias
    if sums.bias.shape[4] > 1:
        bias = lax.dynamic_update_slice_in_dim(sums.bias, bias, start, 4)
    return dataclasses.replace(own, bias=bias)
