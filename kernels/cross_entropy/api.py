"""Cross-entropy of tokens, from logits or from a product, on one device or a mesh."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxcomet.kernels import devices, errors
from jaxcomet.kernels.cross_entropy import reference, sharded
from jaxcomet.kernels.cross_entropy.parts import Loss
from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.partition import Axis, Partition, check_partitioner, partition
from jaxcomet.kernels.precision import Precision
from jaxcomet.kernels.statistics import REDUCTIONS

_DIMENSIONS = ("m", "v")


def cross_entropy(
    logits: Array,
    labels: Array,
    where: Array | None = None,
    *,
    label_smoothing: float = 0.0,
    mesh: Mesh | None = None,
    axis: Axis = None,
    partitioner: str = "shard_map",
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
) -> Array:
    """The cross-entropy of each token's label under softmax(logits), not averaged.

    The dimensions are m, all leading axes as tokens, and v, the vocabulary. Over the devices of v
    three numbers a token are sent, four with smoothing, and none in the backward pass; logits never
    travel. Sizes that do not divide are padded; the gradient of such logits is whole on each
    device, as they are, and is gathered for it.

    Args:
      logits: shape (..., v), float32, bfloat16, float16 or float64.
      labels: integers, shape (...), in [0, v). Another label makes its loss NaN, if it counts.
      where: boolean, broadcastable to `labels`: True counts. Other tokens have loss 0 and gradient
        0, whatever they hold.
      label_smoothing: the share a of the target that all v classes have in equal parts, in [0, 1):
        the loss is (1 - a) * -log p[label] + a * mean of -log p.
      mesh: the devices, or None for one.
      axis: the mesh axes of v, or a mapping such as ``{"m": "x", "v": "y"}``; None is all of them
        for v.
      partitioner: ``shard_map``, or ``auto``, where XLA derives from shardings what is sent.
      reduction: statistics over devices by one ``combined`` collective, or a maximum and sums in
        ``separate`` ones.
      wire_dtype: dtype of what is sent; None is the accumulator's. The maximum is rounded to it
        before it is used, so bfloat16 and float16 are for logits below 4e4.

    Returns:
      The losses, shape (...), float32, or float64 for such logits; their mean over the tokens that
      count is ``losses.sum() / where.sum()``. Conventions for infinities and NaN:
      `jaxcomet.kernels.cross_entropy.reference.cross_entropy`.

    Raises:
      KernelError: arguments that do not fit together.

    Example:
      >>> print(cross_entropy(jnp.array([[1e8, 1e8], [0.0, -jnp.inf]]), jnp.array([0, 0])))
      [0.6931472 0.       ]
    """
    name = "cross_entropy"
    logits = jnp.asarray(logits)
    errors.rank(name, "logits", logits, range(1, 9), "[..., v]")
    errors.floating(name, logits=logits)
    labels, where = _tokens(name, labels, where, logits.shape[:-1], "logits")
    check_partitioner(name, partitioner, mesh)
    loss = _loss(name, label_smoothing, reduction, wire_dtype)
    split = partition(name, mesh, axis, dimensions=_DIMENSIONS, default="v")
    run = _automatic if partitioner == "auto" else _manual
    return devices.guarded(run(logits, labels, where, split=split, loss=loss), mesh)


def linear_cross_entropy(
    x: Array,
    weight: Array,
    labels: Array,
    where: Array | None = None,
    *,
    label_smoothing: float = 0.0,
    block: int | None = None,
    mesh: Mesh | None = None,
    axis: Axis = None,
    partitioner: str = "shard_map",
    reduction: str = "combined",
    wire_dtype: DTypeLike | None = None,
    precision: Precision = None,
) -> Array:
    """The cross-entropy of each token's label under softmax(x @ weight), logits never held whole.

    A device goes through its columns of `weight` in blocks, and holds the logits of one. The
    backward pass makes them again, for one product more than the plain form has. Split v: sent are
    three numbers a token, four with smoothing, and the gradient of `x` once. Split m: the gradient
    of `weight` is summed over devices, block by block.

    Args:
      x: shape (..., k), float32, bfloat16, float16 or float64.
      weight: shape (k, v).
      labels: integers, shape (...), in [0, v). Another label makes its loss NaN, if it counts.
      where: boolean, broadcastable to `labels`: True counts. Other tokens have loss 0, gradient 0
        and no influence on that of `weight`, whatever they hold.
      label_smoothing: as of `cross_entropy`.
      block: columns of the vocabulary whose logits a device holds at once; None is as many as give
        8 MiB in float32, and at least 512.
      mesh: the devices, or None for one.
      axis: the mesh axes of v, or a mapping such as ``{"m": "x", "v": "y"}``; None is all of them
        for v.
      partitioner: ``shard_map``, or ``auto``: the plain form, which holds all logits, where XLA
        derives from shardings what is sent.
      reduction: as of `cross_entropy`.
      wire_dtype: dtype of what is sent, gradients included; as of `cross_entropy`.
      precision: of the matrix products.

    Returns:
      The losses, shape (...), float32, or float64 for such arguments. Gradients are accumulated so
      as well and rounded once.

    Raises:
      KernelError: arguments that do not fit together.

    Example:
      >>> print(linear_cross_entropy(jnp.ones((1, 2)), jnp.zeros((2, 4)), jnp.array([3])))
      [1.3862944]
    """
    name = "linear_cross_entropy"
    x, weight = jnp.asarray(x), jnp.asarray(weight)
    errors.rank(name, "x", x, range(1, 9), "[..., k]")
    errors.rank(name, "weight", weight, 2, "[k, v]")
    errors.floating(name, x=x, weight=weight)
    errors.equal_sizes(
        name, (f"x axis {x.ndim - 1} (k)", x.shape[-1]), ("weight axis 0 (k)", weight.shape[0])
    )
    labels, where = _tokens(name, labels, where, x.shape[:-1], "x")
    check_partitioner(name, partitioner, mesh)
    loss = _loss(name, label_smoothing, reduction, wire_dtype)
    if block is not None and block < 1:
        raise KernelError(f"{name}: block: got {block}; expected at least 1 column, or None")
    split = partition(name, mesh, axis, dimensions=_DIMENSIONS, default="v")
    if partitioner == "auto":
        result = _automatic_linear(
            x, weight, labels, where, split=split, loss=loss, precision=precision
        )
    else:
        result = _manual_linear(
            x, weight, labels, where, split=split, loss=loss, block=block, precision=precision
        )
    return devices.guarded(result, mesh)


def _tokens(
    name: str, labels: Array, where: Array | None, shape: tuple[int, ...], of: str
) -> tuple[Array, Array | None]:
    """Checked labels and mask; the mask of the shape of the labels."""
    labels = jnp.asarray(labels)
    if not jnp.issubdtype(labels.dtype, jnp.integer) or labels.shape != shape:
        raise KernelError(
            f"{name}: labels: got {labels.dtype} of shape {labels.shape}; expected integers of the "
            f"leading shape of {of}, {shape}"
        )
    where = errors.mask(name, "where", where, shape or (1,))
    if where is not None:
        last = shape[-1] if shape else 1
        where = jnp.broadcast_to(where, (labels.size // last, last)).reshape(shape)
    return labels, where


def _loss(
    name: str,
    label_smoothing: float,
    reduction: str,
    wire_dtype: DTypeLike | None,
) -> Loss:
    """Checked options."""
    if not 0 <= label_smoothing < 1:
        raise KernelError(f"{name}: label_smoothing: got {label_smoothing}; expected 0 <= a < 1")
    errors.one_of(name, "reduction", reduction, REDUCTIONS)
    return Loss(label_smoothing=label_smoothing, reduction=reduction, wire_dtype=wire_dtype)


@functools.partial(jax.jit, static_argnames=("split", "loss"))
def _automatic(
    logits: Array, labels: Array, where: Array | None, *, split: Partition, loss: Loss
) -> Array:
    rows = split.constrain(logits.reshape(-1, logits.shape[-1]), *sharded.LOGITS)
    labels_of_rows, where = _flat(labels, where, logits.shape[-1])
    losses = reference.cross_entropy(
        rows, labels_of_rows, where, label_smoothing=loss.label_smoothing
    )
    return split.constrain(losses, *sharded.TOKENS).reshape(labels.shape)


@functools.partial(jax.jit, static_argnames=("split", "loss"))
def _manual(
    logits: Array, labels: Array, where: Array | None, *, split: Partition, loss: Loss
) -> Array:
    rows = logits.reshape(-1, logits.shape[-1])
    flat = _flat(labels, where, logits.shape[-1])
    losses: Array = sharded.losses(rows, *flat, split, loss)
    return losses.reshape(labels.shape)


@functools.partial(jax.jit, static_argnames=("split", "loss", "precision"))
def _automatic_linear(
    x: Array,
    weight: Array,
    labels: Array,
    where: Array | None,
    *,
    split: Partition,
    loss: Loss,
    precision: Precision,
) -> Array:
    rows = split.constrain(x.reshape(-1, x.shape[-1]), "m", None)
    labels_of_rows, where = _flat(labels, where, weight.shape[1])
    losses = reference.linear_cross_entropy(
        rows,
        split.constrain(weight, None, "v"),
        labels_of_rows,
        where,
        label_smoothing=loss.label_smoothing,
        precision=precision,
    )
    return split.constrain(losses, *sharded.TOKENS).reshape(labels.shape)


@functools.partial(jax.jit, static_argnames=("split", "loss", "block", "precision"))
def _manual_linear(
    x: Array,
    weight: Array,
    labels: Array,
    where: Array | None,
    *,
    split: Partition,
    loss: Loss,
    block: int | None,
    precision: Precision,
) -> Array:
    rows = x.reshape(-1, x.shape[-1])
    flat = _flat(labels, where, weight.shape[1])
    losses: Array = sharded.linear_losses(rows, weight, *flat, split, loss, block, precision)
    return losses.reshape(labels.shape)


def _flat(labels: Array, where: Array | None, num_classes: int) -> tuple[Array, Array | None]:
    """Labels as int32 with -1 for any that is no class, and the mask, both of shape (m,)."""
    if labels.dtype.itemsize < 4:  # too narrow to be compared with the number of classes
        labels = labels.astype(jnp.int32)
    known = (labels >= 0) & (labels < num_classes)
    labels = jnp.where(known, jnp.where(known, labels, 0).astype(jnp.int32), -1)
    return labels.reshape(-1), None if where is None else where.reshape(-1)
