"""What is wrong with the arguments of a kernel.

The one idea: a message names the function, the array and its axis, what was got, what is allowed
and what to do, before anything is traced.
"""

import math
from collections.abc import Iterable, Sequence

import jax.numpy as jnp
from jax import Array


class KernelError(ValueError):
    """Arguments that a kernel cannot run: the message says which, what is allowed, what to do."""


def one_of(function: str, argument: str, got: object, allowed: Iterable[str]) -> None:
    """Refuses a name that is not among the allowed ones.

    Raises:
      KernelError: it is not.
    """
    allowed = tuple(allowed)
    if got not in allowed:
        raise KernelError(f"{function}: {argument}: got {got!r}; expected {' or '.join(allowed)}")


def equal_sizes(function: str, *sizes: tuple[str, int]) -> None:
    """Refuses sizes that must be equal and are not; each comes with the words for its place.

    Example:
      >>> equal_sizes("gemm_softmax", ("a axis 1 (k)", 8), ("b axis 0 (k)", 8))

    Raises:
      KernelError: they differ.
    """
    if len({size for _, size in sizes}) > 1:
        listed = ", ".join(f"{size} for {place}" for place, size in sizes)
        raise KernelError(f"{function}: got {listed}; expected equal sizes")


def rank(function: str, name: str, array: Array, expected: int | range, shape: str) -> None:
    """Refuses an array of another rank, or with an axis of size 0.

    Args:
      function: the public function, for the message.
      name: the argument.
      array: its value.
      expected: the number of axes, or a range of them.
      shape: the axes in words, such as ``"[..., m, k]"``.

    Raises:
      KernelError: another rank, or nothing in it.
    """
    allowed: Sequence[int] = expected if isinstance(expected, range) else (expected,)
    if array.ndim not in allowed:
        raise KernelError(f"{function}: {name}: got shape {array.shape}; expected {shape}")
    if 0 in array.shape:
        raise KernelError(
            f"{function}: {name}: got shape {array.shape}, axis {array.shape.index(0)} of size 0; "
            f"expected {shape} with at least 1 of each"
        )


def floating(function: str, **arrays: Array) -> None:
    """Refuses arrays that hold no floating-point numbers.

    Raises:
      KernelError: integers, booleans or complex numbers.
    """
    for name, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise KernelError(
                f"{function}: {name}: got dtype {array.dtype}; expected a floating-point dtype; "
                f"convert it with {name}.astype(jnp.float32)"
            )


def not_negative(function: str, name: str, value: float) -> None:
    """Refuses a number below 0, and NaN.

    Raises:
      KernelError: it is.
    """
    if not value >= 0:
        raise KernelError(f"{function}: {name}: got {value}; expected a number of at least 0")


def mask(function: str, name: str, where: Array | None, shape: tuple[int, ...]) -> Array | None:
    """A mask as rows: its leading axes become one, of size 1 where it is the same for all rows.

    Args:
      function: the public function, for the message.
      name: the argument.
      where: boolean, broadcastable to `shape`, or None.
      shape: (*rows, n).

    Returns:
      Shape (rows or 1, n or 1), or None.

    Raises:
      KernelError: no boolean, or a shape that does not broadcast.
    """
    if where is None:
        return None
    where = jnp.asarray(where)
    try:
        fits = jnp.broadcast_shapes(where.shape, shape) == shape
    except ValueError:
        fits = False
    if where.dtype != bool or not fits:
        raise KernelError(
            f"{function}: {name}: got {where.dtype} of shape {where.shape}; expected booleans, "
            f"True where an element takes part, of a shape that broadcasts to {shape}"
        )
    where = where.reshape(*(1,) * (len(shape) - where.ndim), *where.shape)
    if all(size == 1 for size in where.shape[:-1]):
        return where.reshape(1, -1)
    rows = math.prod(shape[:-1])
    return jnp.broadcast_to(where, (*shape[:-1], where.shape[-1])).reshape(rows, -1)
