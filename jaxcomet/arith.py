"""The few non-smooth primitives of the cost model, exact and relaxed.

Everything else in the equations is sums, products and max. Each primitive is exact on whole
numbers, is continuous between them where that is possible, and states the derivative that
`jax.grad` sees.

`ceil` and `floor` have steps, so they take a temperature (`relaxed`): at 0, the default, they
are exact and their derivative is that of the quotient (straight-through); without end, `ceil` is
``max(1, x)`` and `floor` the identity, both continuous; in between, the steps are exponentials of
that width. Conditions on a count of 1 are linear between 1 and 2, and max and min stay hard: both
are exact on whole numbers and have useful derivatives at every temperature. What is switched (by
`reached`, and by `jaxcomet.cost.exchange.pick`) goes over within a share of that width.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

Number = float | Float[jax.Array | np.ndarray, "..."]
"""A Python float or an array. All equations broadcast over arrays; on floats and NumPy arrays alone
they run without JAX, exactly alike, and nothing compiles."""

Condition = bool | Bool[jax.Array | np.ndarray, "..."]
"""A truth value or an array of them."""


_SNAP = 2.0 * float(np.finfo(np.float64).eps)


def _snap(quotient: Number) -> float:
    # A quotient of whole numbers that divide may come out a unit in the last place off.
    if isinstance(quotient, float | int):
        return _SNAP
    return 2.0 * float(np.finfo(quotient.dtype).eps)


_temperature: contextvars.ContextVar[Number] = contextvars.ContextVar("temperature", default=0.0)


@contextlib.contextmanager
def relaxed(temperature: Number) -> Iterator[None]:
    """Evaluates the equations inside at a temperature; see the module docstring.

    Args:
      temperature: width of the steps of `ceil` and `floor` as a share of a step: 0 (exact), a
        positive number, which may be traced, or ``math.inf``.

    Example:
      >>> with relaxed(math.inf):
      ...     ceil(0.3), ceil(2.3), floor(2.3)
      (1.0, 2.3, 2.3)
    """
    token = _temperature.set(float(temperature) if isinstance(temperature, int) else temperature)
    try:
        yield
    finally:
        _temperature.reset(token)


def temperature() -> Number:
    """The temperature at which the equations are evaluated; 0 unless inside `relaxed`."""
    return _temperature.get()


def is_exact() -> bool:
    """Whether the equations are evaluated exactly, at a temperature of 0."""
    width = temperature()
    return isinstance(width, float) and width == 0.0


_RAMP = 2.0**12  # reciprocal of the part of the first step in which a relaxed ceil leaves 0


@jax.custom_jvp
def _first_step(quotient: jax.Array) -> jax.Array:
    return jnp.minimum(quotient * _RAMP, 1.0)


@_first_step.defjvp
def _first_step_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # the slope of the ramp itself would say that any change costs thousands of steps
    (x,), (dx,) = primals, tangents
    return _first_step(x), jnp.where(x * _RAMP < 1.0, dx, jnp.zeros_like(dx))


def _relaxed_ceil(x: Number, width: Number) -> Number:
    """1 up to x = 1 (0 at 0), then linear, or steps of exponentials."""
    first = minimum(x * _RAMP, 1.0) if on_host(x) else _first_step(_as_float(x))
    if isinstance(width, float) and math.isinf(width):
        return maximum(x, first)
    xp, snap = (np if on_host(x, width) else jnp), _snap(x)
    whole = xp.floor(x * (1.0 + snap))
    # what rounding left of a whole number is nothing, however low the temperature
    rest = maximum(x * (1.0 - snap) - whole, 0.0)
    return select(x <= 1.0, first, whole + xp.expm1(-rest / width) / xp.expm1(-1.0 / width))


def _relaxed_floor(x: Number, width: Number) -> Number:
    """The identity, or steps of exponentials."""
    if isinstance(width, float) and math.isinf(width):
        return x
    xp, snap = (np if on_host(x, width) else jnp), _snap(x)
    whole = xp.ceil(x * (1.0 - snap))
    missing = maximum(whole - x * (1.0 + snap), 0.0)
    return whole - xp.expm1(-missing / width) / xp.expm1(-1.0 / width)


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


def on_host(*terms: object) -> bool:
    """Whether all are Python floats or NumPy arrays, which need no JAX."""
    return all(isinstance(x, float | np.ndarray) for x in terms)


def _as_float(x: Number) -> jax.Array:
    return jnp.asarray(x, dtype=jnp.result_type(float))


def ceil(x: Number, *, scale: Number | None = None) -> Number:
    """Smallest whole number >= x (x >= 0).

    A quotient within rounding of a whole number is snapped to it.

    Args:
      x: the number.
      scale: where x is a difference of larger numbers, their size: what cancels leaves their
        rounding behind.

    Gradient: that of x (straight-through), because the true derivative, 0, says nothing. At a
    temperature: see `relaxed`.
    """
    if not is_exact():
        return _relaxed_ceil(x, temperature())
    if isinstance(x, float) and (scale is None or isinstance(scale, float)):
        off = 0.0 if scale is None else 2.0 * _SNAP * scale
        return float(max(0, math.ceil(x * (1.0 - _SNAP) - off)))
    if on_host(x, 0.0 if scale is None else scale):
        off = 0.0 if scale is None else 2.0 * _SNAP * scale
        return np.maximum(np.ceil(x * (1.0 - _SNAP) - off), 0.0)
    value = _as_float(x)
    if scale is None:
        return _ceil(value)
    off = jax.lax.stop_gradient(2.0 * _snap(value) * _as_float(scale))
    return jnp.maximum(_ceil(value - off), 0.0)


def floor(x: Number) -> Number:
    """Largest whole number <= x (x >= 0), snapped as `ceil`.

    Gradient: that of x (straight-through). At a temperature: see `relaxed`.
    """
    if not is_exact():
        return _relaxed_floor(x, temperature())
    if isinstance(x, float):
        return float(math.floor(x * (1.0 + _SNAP)))
    if isinstance(x, np.ndarray):
        return np.floor(x * (1.0 + _SNAP))
    return _floor(_as_float(x))


def _alike(first: Number, second: Number) -> tuple[jax.Array, jax.Array]:
    """Two numbers as arrays of one shape and type."""
    # the usual cases without the operations of the general one, which a float that jax
    # differentiates by needs
    if (
        isinstance(first, jax.Array)
        and not first.weak_type
        and jnp.issubdtype(first.dtype, jnp.floating)
    ):
        if isinstance(second, float):
            return first, jax.lax.full_like(first, second)
        if isinstance(second, jax.Array) and first.aval == second.aval:
            return first, second
    kind = jax.dtypes.canonicalize_dtype(jnp.result_type(first, second))
    shape = jnp.broadcast_shapes(jnp.shape(first), jnp.shape(second))
    a, b = (jnp.broadcast_to(jnp.asarray(x, dtype=kind), shape) for x in (first, second))
    return a, b


@jax.custom_jvp
def _larger(first: jax.Array, second: jax.Array) -> jax.Array:
    return jnp.maximum(first, second)


@_larger.defjvp
def _larger_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # that of jnp.maximum, in half the operations: a gradient of the model has hundreds of these
    (a, b), (da, db) = primals, tangents
    none, half, whole = (jax.lax.full_like(a, x) for x in (0.0, 0.5, 1.0))
    at_most = jax.lax.select(jax.lax.lt(a, b), none, half)
    share = jax.lax.select(jax.lax.gt(a, b), whole, at_most)
    return _larger(a, b), db + share * (da - db)


def maximum(*terms: Number) -> Number:
    """Largest of the terms. Gradient at a tie: shared equally among two, left to right."""
    result = terms[0]
    for term in terms[1:]:
        if isinstance(result, float) and isinstance(term, float):
            result = max(result, term)
        elif on_host(result, term):
            result = np.maximum(result, term)
        else:
            result = _larger(*_alike(result, term))
    return result


def minimum(*terms: Number) -> Number:
    """Smallest of the terms."""
    result = terms[0]
    for term in terms[1:]:
        if isinstance(result, float) and isinstance(term, float):
            result = min(result, term)
        elif on_host(result, term):
            result = np.minimum(result, term)
        else:
            result = -_larger(*(-x for x in _alike(result, term)))
    return result


def select(condition: Condition, yes: Number, no: Number) -> Number:
    """`yes` where the condition holds, else `no`. Gradient: that of the chosen one."""
    if isinstance(condition, bool):
        return yes if condition else no
    if isinstance(condition, np.ndarray) and on_host(yes, no):
        return np.where(condition, yes, no)
    return jnp.where(condition, yes, no)


def log2(x: Number) -> Number:
    """Logarithm to the base 2 of a positive number."""
    if isinstance(x, float):
        return math.log2(x)
    return np.log2(x) if isinstance(x, np.ndarray) else jnp.log2(x)


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
    """1 where a whole count is 1, 0 where it is 2 or more; linear between 1 and 2.

    Gradient at 1: that towards 2, as no count is less; at 2: half of it.
    """
    if isinstance(count, float):
        return min(1.0, max(0.0, 2.0 - count))
    if isinstance(count, np.ndarray):
        return np.clip(2.0 - count, 0.0, 1.0)
    missing = jnp.maximum(2.0 - count, 0.0)
    return missing - jax.lax.stop_gradient(jnp.maximum(missing - 1.0, 0.0))


def at_least_two(count: Number) -> Number:
    """1 where a whole count is 2 or more, 0 where it is 1; linear between."""
    return minimum(count - 1.0, 1.0)


def reached(excess: Number) -> Number:
    """1 where the excess is not negative, else 0.

    At a temperature it rises within that much before, within 1 at most, so that what is switched is
    continuous. Gradient: 0, as between the two ends: the slope of the rise leads nowhere.
    """
    if is_exact():
        return select(excess >= 0.0, 1.0, 0.0)
    risen = minimum(maximum(1.0 + excess / minimum(temperature(), 1.0), 0.0), 1.0)
    return risen if on_host(risen) else jax.lax.stop_gradient(risen)


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
    unlimited = is_unlimited(rate)
    return select(unlimited, math.inf, count * select(unlimited, 1.0, rate))


def is_unlimited(rate: Number) -> Condition:
    """Whether a rate is inf."""
    if isinstance(rate, float):
        return math.isinf(rate)
    return np.isinf(rate) if isinstance(rate, np.ndarray) else jnp.isinf(rate)


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
