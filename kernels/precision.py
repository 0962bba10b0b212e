"""In which dtype a kernel computes: float32 for anything narrower, else that of its arguments.

The one idea: matrix products read the narrow operands as they are and accumulate wide; statistics
are wide; a result is rounded once, at the end.
"""

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

Precision = lax.PrecisionLike


def accumulator(*dtypes: DTypeLike) -> jnp.dtype:
    """The dtype of statistics and accumulation for operands of these dtypes.

    Example:
      >>> accumulator(jnp.bfloat16, jnp.float16)
      dtype('float32')
    """
    return jnp.promote_types(jnp.result_type(*dtypes), jnp.float32)


def matmul(a: Array, b: Array, precision: Precision = None) -> Array:
    """The product of two matrices or stacks of them, in the accumulator's dtype."""
    return jnp.matmul(
        a, b, precision=precision, preferred_element_type=accumulator(a.dtype, b.dtype)
    )
