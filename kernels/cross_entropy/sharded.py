"""The losses of logits, and of a product whose logits are never held whole, with their gradients.

The one idea: forward and backward are each one mapped function over the devices, and the custom
derivative lies outside of them. What is kept between them is the arguments and three numbers a
token, from which the backward pass makes the probabilities again; over the devices of the
vocabulary it sends nothing for logits, and the gradient of `x`, of the size of `x`, for a product.
"""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcomet.kernels import collectives, statistics
from jaxcomet.kernels.cross_entropy import parts
from jaxcomet.kernels.cross_entropy.parts import Loss, Part, counted
from jaxcomet.kernels.partition import Dimensions, Partition, pad, padded
from jaxcomet.kernels.precision import Precision, accumulator, matmul

State = TypeVar("State")

TOKENS: Dimensions = ("m",)
LOGITS: Dimensions = ("m", "v")

_BLOCK_ELEMENTS = 2**21
"""Logits in a block: 8 MiB in float32; two such arrays live at a time."""
_MIN_BLOCK = 512
"""Columns in a block, however many tokens: with fewer its products are mostly traffic."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def losses(
    logits: Array, labels: Array, where: Array | None, split: Partition, loss: Loss
) -> Array:
    """The losses of tokens from logits that are split over vocabulary and tokens.

    Args:
      logits: shape (m, v).
      labels: int32, shape (m,); -1 where one is not in the vocabulary.
      where: boolean, shape (m,), or None: which tokens count.
      split: of the dimensions m and v.
      loss: the options.

    Returns:
      Shape (m,), in the accumulator's dtype.
    """
    return _losses_forward(logits, labels, where, split, loss)[0]


def _losses_forward(
    logits: Array, labels: Array, where: Array | None, split: Partition, loss: Loss
) -> tuple[Array, tuple[Array, Array, Array | None, Array]]:
    m, v = logits.shape
    columns = statistics.columns(split, "v", v)

    def body(logits: Array, labels: Array) -> Array:
        part = parts.part(logits, labels, columns, loss)
        return parts.losses(part, labels, columns, loss)

    rows = split.map_padded(body, (logits, labels), (LOGITS, TOKENS), (None, "m"), {"m": m, "v": v})
    return counted(rows[0], where), (logits, labels, where, rows[1:])


def _losses_backward(
    split: Partition,
    loss: Loss,
    kept: tuple[Array, Array, Array | None, Array],
    cotangent: Array,
) -> tuple[Array, None, None]:
    logits, labels, where, rows = kept
    m, v = logits.shape
    columns = statistics.columns(split, "v", v)

    def body(
        logits: Array, labels: Array, rows: Array, cotangent: Array, where: Array | None = None
    ) -> Array:
        return parts.slopes(
            logits, labels, rows, cotangent, columns, loss, logits.dtype, where=where
        )

    extras = () if where is None else (where,)
    gradient = split.map_padded(
        body,
        (logits, labels, rows, cotangent, *extras),
        (LOGITS, TOKENS, (None, "m"), TOKENS, *[TOKENS] * len(extras)),
        LOGITS,
        {"m": m, "v": v},
    )
    return gradient, None, None


losses.defvjp(_losses_forward, _losses_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def linear_losses(
    x: Array,
    weight: Array,
    labels: Array,
    where: Array | None,
    split: Partition,
    loss: Loss,
    block: int | None,
    precision: Precision,
) -> Array:
    """The losses of tokens from the logits x @ weight, a block of columns at a time.

    Blocks of columns, not of tokens, since each then has the whole of its gradient of `weight`:
    it is accumulated wide by one product and rounded once, without a wide copy of all of it
    (as chunks of tokens need: Liger-Kernel PR 830), and what is summed over blocks is the gradient
    of `x`.

    Args:
      x: shape (m, k).
      weight: shape (k, v).
      labels: int32, shape (m,); -1 where one is not in the vocabulary.
      where: boolean, shape (m,), or None: which tokens count.
      split: of the dimensions m and v.
      loss: the options.
      block: columns of a device's logits that are held at once, or None for a choice.
      precision: of the products.

    Returns:
      Shape (m,), in the accumulator's dtype.
    """
    return _linear_forward(x, weight, labels, where, split, loss, block, precision)[0]


def _linear_forward(
    x: Array,
    weight: Array,
    labels: Array,
    where: Array | None,
    split: Partition,
    loss: Loss,
    block: int | None,
    precision: Precision,
) -> tuple[Array, tuple[Array, Array, Array, Array | None, Array]]:
    m, v = x.shape[0], weight.shape[1]
    columns = statistics.columns(split, "v", v)

    def body(x: Array, weight: Array, labels: Array) -> Array:
        def step(before: Part, start: Array | int, width: int) -> Part:
            logits = matmul(x, _columns_of(weight, start, width), precision)
            new = parts.part(logits, labels, columns, loss, start)
            return parts.joined(before, new, columns, start, width)

        like = jnp.zeros(x.shape[0], accumulator(x.dtype, weight.dtype))
        none = parts.nothing(collectives.varying(like, split.names("m", "v")))
        part = _over_blocks(step, none, columns.local, _width(x, columns.local, block))
        return parts.losses(part, labels, columns, loss)

    rows = split.map_padded(
        body,
        (x, weight, labels),
        (("m", None), (None, "v"), TOKENS),
        (None, "m"),
        {"m": m, "v": v},
    )
    return counted(rows[0], where), (x, weight, labels, where, rows[1:])


def _linear_backward(
    split: Partition,
    loss: Loss,
    block: int | None,
    precision: Precision,
    kept: tuple[Array, Array, Array, Array | None, Array],
    cotangent: Array,
) -> tuple[Array, Array, None, None]:
    x, weight, labels, where, rows = kept
    (m, _), v = x.shape, weight.shape[1]
    columns = statistics.columns(split, "v", v)
    narrow, wide = jnp.result_type(x, weight), accumulator(x.dtype, weight.dtype)

    def body(
        x: Array,
        weight: Array,
        labels: Array,
        rows: Array,
        cotangent: Array,
        where: Array | None = None,
    ) -> tuple[Array, Array]:
        # The cotangents, which are small for a mean over many tokens, stay out of the narrow
        # products: float16 would lose them. Those of a mean are equal, and `weighted` is then x.
        cotangent = counted(cotangent, where)
        size = jnp.abs(cotangent).max()
        size = jnp.where(size == 0, 1, size)
        ones = jnp.ones_like(cotangent)
        weighted = counted(x * (cotangent / size)[:, None], where).astype(narrow)

        def step(sums: tuple[Array, Array], start: Array | int, width: int) -> tuple[Array, Array]:
            x_slopes, weight_slopes = sums
            part = _columns_of(weight, start, width)
            logits = matmul(x, part, precision)
            slopes = parts.slopes(
                logits, labels, rows, ones, columns, loss, narrow, start=start, where=where
            )
            x_slopes = x_slopes + matmul(slopes, part.T, precision)
            new = matmul(weighted.T, slopes, precision) * size
            new = collectives.all_reduce_sum(new, split.names("m"), loss.wire_dtype)
            weight_slopes = lax.dynamic_update_slice_in_dim(
                weight_slopes, new.astype(weight.dtype), start, axis=1
            )
            return x_slopes, weight_slopes

        zeros = collectives.varying(jnp.zeros(x.shape, wide), split.names("m", "v"))
        x_slopes, weight_slopes = _over_blocks(
            step, (zeros, jnp.zeros_like(weight)), columns.local, _width(x, columns.local, block)
        )
        x_slopes = collectives.all_reduce_sum(x_slopes, split.names("v"), loss.wire_dtype)
        return counted(x_slopes * cotangent[:, None], where).astype(x.dtype), weight_slopes

    m_padded, v_padded = padded(m, split.shards("m")), columns.local * columns.shards
    extras = () if where is None else (where,)
    tokens = split.spec("m")
    x_spec, weight_spec = split.spec("m", None), split.spec(None, "v")
    x_slopes, weight_slopes = split.map(
        body,
        (x_spec, weight_spec, tokens, split.spec(None, "m"), tokens, *[tokens] * len(extras)),
        (x_spec, weight_spec),
    )(
        pad(x, 0, m_padded),
        pad(weight, 1, v_padded),
        pad(labels, 0, m_padded),
        pad(rows, 1, m_padded),
        *(pad(each, 0, m_padded) for each in (cotangent, *extras)),
    )
    return x_slopes[:m], weight_slopes[:, :v], None, None


linear_losses.defvjp(_linear_forward, _linear_backward)


def _columns_of(weight: Array, start: Array | int, width: int) -> Array:
    """A block of columns, shape (k, width)."""
    # The barrier ties all columns to this turn of the loop: jaxlib 0.10.2 on a CPU would make
    # float32 of them all in front of it, where they are narrower.
    weight, start = lax.optimization_barrier((weight, start))
    return lax.dynamic_slice_in_dim(weight, start, width, axis=1)


def _width(x: Array, local: int, block: int | None) -> int:
    """How many of a device's columns are held at once: blocks of nearly equal size."""
    wanted = max(_BLOCK_ELEMENTS // x.shape[0], _MIN_BLOCK) if block is None else block
    return -(-local // -(-local // wanted))


def _over_blocks(
    step: Callable[[State, Array | int, int], State], state: State, size: int, width: int
) -> State:
    """step(state, start, width) for each block of `size` columns; the last one may be narrower."""
    whole, rest = divmod(size, width)
    state = lax.fori_loop(0, whole, lambda i, state: step(state, i * width, width), state)
    return step(state, whole * width, rest) if rest else state
