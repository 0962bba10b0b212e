"""The one place that bridges jax 0.10.2 to 0.12.

The one idea: a name that moved lately, or may move again, is taken from here, so that no other
module asks for a version. `jax.enable_x64` left `jax.experimental` shortly before 0.10.2.
"""

from contextlib import AbstractContextManager
from typing import Any, TypeGuard

import jax
from jax.core import Tracer


def enable_x64(enabled: bool = True) -> AbstractContextManager[None]:
    """A context in which jax computes with 64-bit numbers (or with 32-bit ones, if not `enabled`).

    Args:
      enabled: True for 64-bit numbers inside the context.

    Returns:
      The context manager; it restores the former state when left.

    Example:
      >>> import jax.numpy as jnp
      >>> with enable_x64():
      ...     print(jnp.asarray(1.0).dtype)
      float64
    """
    return jax.enable_x64(enabled)


def is_traced(value: Any) -> TypeGuard[jax.Array]:
    """Whether a value stands for an array inside a jax transformation, so that it cannot be read.

    Example:
      >>> is_traced(1.0)
      False
    """
    return isinstance(value, Tracer)
