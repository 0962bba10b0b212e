"""The few non-smooth primitives of the cost model.

Everything else in the equations is sums, products and max. Each primitive is exact on whole
numbers, is continuous between them where that is possible, and states the derivative that
`jax.grad` sees.

Left out: a temperature. `optimize` relaxes further.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

Number = float | Float[jax.Array | np.ndarray, "..."]
"""A Python float or an array. All equations broadcast over arrays; on floats alone they run without
JAX, exactly alike."""

Condition = bool | Bool[jax.Array | np.ndarray, "..."]
"""A truth value or an array of them."""


_SNAP = 2.0 * float(np.finfo(np.float64).eps)


def _snap(quotient: jax.Array) -> float:
    # A quotient of whole numbers that divide may come out a unit in the last place off.
    return 2.0 * float(np.finfo(quotient.dtype).eps)


@jax.custom_jvp
def _ceil(quotient: jax.Array) -> jax.Array:
    return jnp.ceil(quotient * (1.0 - _snap(quotient)))


@_ceil.defjvp
def _ceil_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return _ceil(primals[0]), tangents[0]


@jax.custom_jvp
def _floor(quotient: jax.Array) -> jax.Array:
    return jnp.floor(quotient * (1.0 + _snap(quotient)))


@_floor.defjvp
def _floor_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return _floor(primals[0]), tangents[0]


def _as_float(x: Number) -> jax.Array:
    return jnp.asarray(x, dtype=jnp.result_type(float))


def ceil(x: Number, *, scale: Number | None = None) -> Number:
    """Smallest whole number >= x (x >= 0).

    A quotient within rounding of a whole number is snapped to it.

    Args:
      x: the number.
      scale: where x is a difference of larger numbers, their size: what cancels leaves their
        rounding behind.

    Gradient: that of x (straight-through), because the true derivative, 0, says nothing.
    """
    if isinstance(x, float) and (scale is None or isinstance(scale, float)):
        off = 0.0 if scale is None else 2.0 * _SNAP * scale
        return float(max(0, math.ceil(x * (1.0 - _SNAP) - off)))
    value = _as_float(x)
    if scale is None:
        return _ceil(value)
    off = jax.lax.stop_gradient(2.0 * _snap(value) * _as_float(scale))
    return jnp.maximum(_ceil(value - off), 0.0)


def floor(x: Number) -> Number:
    """Largest whole number <= x (x >= 0), snapped as `ceil`.

    Gradient: that of x (straight-through).
    """
    if isinstance(x, float):
        return float(math.floor(x * (1.0 + _SNAP)))
    return _floor(_as_float(x))


def maximum(*terms: Number) -> Number:
    """Largest of the terms. Gradient at a tie: shared equally among two, left to right."""
    result = terms[0]
    for term in terms[1:]:
        if isinstance(result, float) and isinstance(term, float):
            result = max(result, term)
        else:
            result = jnp.maximum(result, term)
    return result


def minimum(*terms: Number) -> Number:
    """Smallest of the terms."""
    result = terms[0]
    for term in terms[1:]:
        if isinstance(result, float) and isinstance(term, float):
            result = min(result, term)
        else:
            result = jnp.minimum(result, term)
    return result


def select(condition: Condition, yes: Number, no: Number) -> Number:
    """`yes` where the condition holds, else `no`. Gradient: that of the chosen one."""
    if isinstance(condition, bool):
        return yes if condition else no
    return jnp.where(condition, yes, no)


def relu(x: Number) -> Number:
    """max(0, x)."""
    return maximum(x, 0.0)


def product(terms: Sequence[Number]) -> Number:
    """Product, 1.0 for none."""
    result: Number = 1.0
    for term in terms:
        if isinstance(term, float) and term == 1.0:
            continue
        result = term if isinstance(result, float) and result == 1.0 else result * term
    return result


def is_one(count: Number) -> Number:
    """1 where a whole count is 1, 0 where it is 2 or more; linear between 1 and 2."""
    if isinstance(count, float):
        return min(1.0, max(0.0, 2.0 - count))
    return jnp.clip(2.0 - count, 0.0, 1.0)


def at_least_two(count: Number) -> Number:
    """1 where a whole count is 2 or more, 0 where it is 1; linear between."""
    return minimum(count - 1.0, 1.0)


def per(x: Number, rate: Number) -> Number:
    """X / rate, as a product with the reciprocal.

    A rate is a machine number, the same for a whole batch: one division serves it, and the compiler
    fuses what depends on it. `ceil` and `floor` snap away the last place that this may cost. An
    unlimited rate (inf) gives 0, with gradient 0 in both.
    """
    return x * (1.0 / rate)


def times_rate(count: Number, rate: Number) -> Number:
    """Count x rate, for a rate that may be unlimited.

    Gradient: 0 in both where the rate is inf. A plain product would give ``0 * inf``, not a number,
    for the count, because `per` and `minimum` hand down a slope of 0.
    """
    if isinstance(rate, float):
        return math.inf if math.isinf(rate) else count * rate
    unlimited = jnp.isinf(rate)
    return jnp.where(unlimited, jnp.inf, count * jnp.where(unlimited, 1.0, rate))


def reuse(loops: Sequence[tuple[Number, bool]], *, beyond: int = 0) -> Number:
    """Steps between two moves of a tile in a loop nest.

    Walking outwards from the innermost loop, loops that the tensor does not depend on repeat the
    same tile; the first loop that it depends on, and that has more than one step, ends that.

    Args:
      loops: (steps, whether the tensor depends on the loop), innermost first.
      beyond: innermost loops that do not count themselves, though they may end the repetition.

    Returns:
      The product of the repeating loops' steps; exact on whole numbers, linear where a loop goes
      from 1 to 2 steps.
    """
    found = _irrelevant(loops, beyond)
    return product([1.0 + (steps - 1.0) * still for steps, still in found])


def refetch(loops: Sequence[tuple[Number, bool]]) -> Number:
    """How often each distinct tile moves in a loop nest: the counterpart of `reuse`.

    Args:
      loops: as for `reuse`.

    Returns:
      The product of the steps of those loops that the tensor does not depend on and that lie
      outside one that it does. Moves = distinct tiles x refetch = steps / reuse.
    """
    return product([1.0 + (steps - 1.0) * (1.0 - still) for steps, still in _irrelevant(loops)])


def _irrelevant(
    loops: Sequence[tuple[Number, bool]], beyond: int = 0
) -> list[tuple[Number, Number]]:
    """(steps, 1 where no relevant loop inside it has more than one step) of irrelevant loops."""
    found: list[tuple[Number, Number]] = []
    inner: Number = 1.0
    for index, (steps, relevant) in enumerate(loops):
        if isinstance(steps, float) and steps == 1.0:
            continue
        if relevant:
            inner = product([inner, steps])
        elif index >= beyond:
            found.append((steps, is_one(inner)))
    return found
