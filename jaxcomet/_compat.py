"""The one place that bridges jax 0.10.2 to 0.12.

The one idea: a name that moved lately, or may move again, is taken from here, so that no other
module asks for a version. `jax.enable_x64` left `jax.experimental` shortly before 0.10.2.
"""

from contextlib import AbstractContextManager
from typing import Any, TypeGuard

import jax
from jax._src import distributed, xla_bridge  # what they hold has no public name
from jax.core import Tracer
from jaxlib.version import __version__ as jaxlib_version


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


def backends_started() -> bool:
    """Whether jax has started its backends, so that the number of CPU devices is settled."""
    return xla_bridge.backends_are_initialized()


def cpu_pool_can_deadlock() -> bool:
    """Whether sharded calls that wait for one another share one thread pool: jaxlib before 0.12."""
    return tuple(int(part) for part in jaxlib_version.split(".")[:2]) < (0, 12)


def coordination_client() -> Any:
    """The connection to the processes of a cluster, a key-value store among them; None without.

    Its methods take strings: key_value_set(key, value), blocking_key_value_get(key, milliseconds).
    """
    return distributed.global_state.client


def process_place() -> tuple[int, int]:
    """The rank of this process and the number of processes, without starting the backends.

    Example:
      >>> process_place()
      (0, 1)
    """
    return distributed.global_state.process_id, distributed.global_state.num_processes
