"""What the tests of kernels share: meshes, float64 references, one program for value and gradients.

The one idea: a test body is the same for every kernel, strategy, mesh and dtype.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxcomet._compat import enable_x64
from jaxcomet.kernels.devices import make_mesh

DTYPES = ("float32", "bfloat16", "float16")
MESHES = {"1": 1, "2": 2, "4": 4, "8": 8, "2x4": (2, 4)}

Arrays = Mapping[str, Array]


@functools.cache
def mesh(name: str) -> Mesh:
    """One of MESHES, with the axes x and y."""
    return make_mesh(MESHES[name])


def normal(shape: tuple[int, ...], dtype: DTypeLike = "float32", seed: int = 0) -> Array:
    """Standard normal numbers, rounded to a dtype."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def value_and_gradients(
    function: Callable[..., Array],
    arguments: Arrays,
    cotangent: Array,
    *,
    unoptimized: bool = False,
) -> tuple[Array, dict[str, Array]]:
    """The value and the gradient of sum(value * cotangent) for every argument, as one program.

    `unoptimized` leaves out the optimizations of machine code, but none of the program: it halves
    the time of compilation, which is nearly all that the test of a small case takes.
    """

    def both(arguments: Arrays) -> tuple[Array, dict[str, Array]]:
        value, pull = jax.vjp(lambda arguments: function(**arguments), arguments)
        return value, pull(cotangent.astype(value.dtype))[0]

    options = {"xla_backend_optimization_level": 0} if unoptimized else None
    return jax.jit(both, compiler_options=options)(dict(arguments))


def reference(
    function: Callable[..., Array], arguments: Arrays, cotangent: Array
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The same in float64, of the same rounded arguments."""
    with enable_x64(True):
        wide = {name: jnp.asarray(value, jnp.float64) for name, value in arguments.items()}
        value, gradients = value_and_gradients(
            function, wide, jnp.asarray(cotangent, jnp.float64), unoptimized=True
        )
        return np.asarray(value), {name: np.asarray(grad) for name, grad in gradients.items()}


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of the programs that are compiled inside the context."""
    messages: list[str] = []

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text.startswith("Finished XLA compilation"):
                messages.append(text)

    logger, recorder = logging.getLogger("jax"), Recorder()
    logger.addHandler(recorder)
    try:
        with jax.log_compiles():
            yield messages
    finally:
        logger.removeHandler(recorder)
