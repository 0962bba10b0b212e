"""Collectives inside shard_map, over any number of mesh axes, none included.

The one idea: each takes the mesh axes as a tuple and does nothing for an empty one, so that a
kernel's body is the same on one device and on many. Each knows its derivative, and the dtype that
travels may be narrower than the one that is computed in. (XLA widens bfloat16 again on a CPU, and
float16 in all-reduces; the rounding is the same.)
"""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

Names = tuple[str, ...]


def varying(x: Array, names: Names) -> Array:
    """`x` as a value that may differ between the devices along `names`.

    A branch that depends on the device must get its operands so, or their derivative is silently
    wrong (jax issue 40823), and a custom derivative returns sums over devices only for such values.
    """
    missing = tuple(name for name in names if name not in jax.typeof(x).manual_axis_type.varying)
    return lax.pcast(x, missing, to="varying") if missing else x


def all_reduce_sum(x: Array, names: Names, wire_dtype: DTypeLike | None = None) -> Array:
    """The sum over the devices along `names`, the same on each of them."""
    if not names:
        return x
    return lax.psum(_narrowed(x, wire_dtype), names).astype(x.dtype)


def all_reduce_max(x: Array, names: Names) -> Array:
    """The maximum over the devices along `names`, without a derivative (taken as 0).

    JAX has no derivative of `pmax` (jax issue 7167). Where the maximum only shifts an exponent the
    result does not depend on it, so 0 is exact.
    """
    x = lax.stop_gradient(x)  # on the argument: behind pmax it would come too late
    return lax.pmax(x, names) if names else x


def all_gather(x: Array, names: Names, wire_dtype: DTypeLike | None = None) -> Array:
    """The values of all devices along `names`, stacked on a new leading axis, on each of them."""
    if not names:
        return x[None]
    wide = lax.all_gather(_narrowed(x, wire_dtype), names, to="invarying")
    return wide.astype(x.dtype)


def gather_blocks(x: Array, names: Names, axis: int) -> Array:
    """The whole of an axis that is split along `names`, on each device: what moves is all of it."""
    if not names:
        return x
    return lax.all_gather(x, names, axis=axis, tiled=True, to="invarying")


def reduce_scatter(x: Array, names: Names, axis: int, wire_dtype: DTypeLike | None = None) -> Array:
    """The sum over the devices along `names`, of which each keeps its block along `axis`."""
    if not names:
        return x
    summed = lax.psum_scatter(_narrowed(x, wire_dtype), names, scatter_dimension=axis, tiled=True)
    return summed.astype(x.dtype)


def index(names: Names) -> Array | int:
    """The place of this device along `names`, first name outermost; 0 for none."""
    return lax.axis_index(names) if names else 0


def _narrowed(x: Array, wire_dtype: DTypeLike | None) -> Array:
    """`x` as it travels."""
    return x if wire_dtype is None else x.astype(jnp.dtype(wire_dtype))
