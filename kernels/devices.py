"""Emulated CPU devices, meshes over them, and the guard against a deadlock of jaxlib before 0.12.

The one idea: what must be settled before JAX starts its backends is settled here, and checked.

The deadlock: before 0.12, jaxlib runs all devices of the CPU client on one pool of threads, as many
as there are cores or devices, or as NPROC says. A device that waits in a collective keeps its
thread. With more than 32 sharded calls in flight (JAX returns before a result is there) all threads
can wait for devices that find none; XLA ends the process after a minute, without a Python
exception. Measured with jaxlib 0.10.2 on two cores: 2 threads a device never hang (2, 8, 16, 32 and
64 devices), 1.5 do, and more threads cost no time. So importing this module sets NPROC to that, and
where it could not, `guarded` waits for each result of a kernel.
"""

import functools
import math
import os
import re
import warnings
from typing import TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxcomet._compat import backends_started, cpu_pool_can_deadlock, is_traced
from jaxcomet.kernels.errors import KernelError

Result = TypeVar("Result")

_THREADS_PER_DEVICE = 2
_MIN_THREADS = 16  # enough for 8 devices, where their number is not yet known
_FLAG = "--xla_force_host_platform_device_count"


def emulate(num_devices: int) -> None:
    """Makes this process see so many CPU devices, starts JAX and checks that it does.

    It must come before the first array, `jax.devices()` or anything else that starts the backends.
    A number in XLA_FLAGS or JAX_NUM_CPU_DEVICES is overruled in this process, but not in its
    children, which inherit the environment. Where JAX runs with this number already, nothing is
    done. In a program of several processes use the `num_devices` of `cluster.start`.

    Args:
      num_devices: the emulated devices of this process, at least 1.

    Raises:
      KernelError: a number below 1, JAX has started with another number, or it runs on a platform
        that has other devices.
    """
    if num_devices < 1:
        raise KernelError(f"emulate: num_devices: got {num_devices}; expected at least 1")
    late = backends_started()
    if not late:
        _reserve_threads(num_devices)
        jax.config.update("jax_num_cpu_devices", num_devices)
    platform, count = jax.default_backend(), jax.local_device_count()
    if platform == "cpu" and count == num_devices:
        return
    if platform != "cpu":
        remedy = "set JAX_PLATFORMS=cpu in the environment, to leave out the other platform"
    elif late:
        remedy = (
            "JAX had started before: call emulate before the first array and before jax.devices(), "
            f'or start Python with XLA_FLAGS="{_FLAG}={num_devices}"'
        )
    else:
        remedy = f'start Python with XLA_FLAGS="{_FLAG}={num_devices}"'
    raise KernelError(
        f"emulate: got {count} {platform} devices; expected {num_devices} cpu devices; {remedy}"
    )


def make_mesh(sizes: int | tuple[int, ...], names: str | tuple[str, ...] | None = None) -> Mesh:
    """A mesh over the first devices, of axes that leave shardings to the compiler (Auto).

    `jax.make_mesh` makes explicit axes, on which a kernel's arguments need exactly the sharding
    that it asks for.

    Args:
      sizes: the devices along each axis, or along the only one.
      names: the names of the axes; None is x, y, z for up to three.

    Raises:
      KernelError: a size below 1, not one name for each axis, a name that is used twice, more
        devices than there are.

    Example:
      >>> dict(make_mesh(1).shape)
      {'x': 1}
    """
    sizes = (sizes,) if isinstance(sizes, int) else sizes
    if names is None:
        names = ("x", "y", "z")[: len(sizes)]
    names = (names,) if isinstance(names, str) else names
    if not sizes or min(sizes) < 1:
        raise KernelError(f"make_mesh: sizes: got {sizes}; expected at least 1 for each axis")
    if len(names) != len(sizes) or len(set(names)) != len(names):
        raise KernelError(
            f"make_mesh: names: got {names} for sizes {sizes}; expected another name for each axis"
        )
    wanted, devices = math.prod(sizes), jax.devices()
    if wanted > len(devices):
        raise KernelError(
            f"make_mesh: sizes: got {sizes}, {wanted} devices; there are {len(devices)}; for more "
            f"on a CPU call jaxcomet.kernels.devices.emulate({wanted}) before JAX starts, or start "
            f'Python with XLA_FLAGS="{_FLAG}={wanted}"'
        )
    return Mesh(
        np.asarray(devices[:wanted]).reshape(sizes),
        names,
        axis_types=(AxisType.Auto,) * len(sizes),
    )


def guarded(result: Result, mesh: Mesh | None) -> Result:
    """The result of a kernel, waited for where more calls in flight could deadlock.

    That is on jaxlib before 0.12 alone, on several CPU devices, where JAX had started before this
    module could ask for enough threads, or has more devices than it was known to get. Under a trace
    there is nothing to wait for: a compiled function of the user's that is called in a loop then
    stays at risk, and a warning says so once.

    Args:
      result: arrays, in any structure.
      mesh: the devices of the kernel, or None for one.

    Returns:
      `result`.
    """
    if mesh is None or mesh.size == 1 or not cpu_pool_can_deadlock():
        return result
    if mesh.devices.flat[0].platform != "cpu" or _pool_is_enough():
        return result
    if any(is_traced(leaf) for leaf in jax.tree.leaves(result)):
        _warn_once()
        return result
    return jax.block_until_ready(result)


def _pool_is_enough() -> bool:
    """Whether the client has threads enough for any number of calls in flight."""
    # All local devices count, since calls on different parts of them share the pool.
    devices = jax.local_device_count(backend="cpu")
    return max(_threads_at_import or _threads(), devices) >= _THREADS_PER_DEVICE * devices


@functools.cache
def _warn_once() -> None:
    warnings.warn(
        "JAX has started with too few threads for its emulated devices: jaxlib before 0.12 then "
        "hangs with more than 32 calls of a compiled function in flight. Import jaxcomet.kernels "
        "or call its emulate() before the first array, or set NPROC="
        f"{_THREADS_PER_DEVICE * jax.local_device_count(backend='cpu')} in the environment, or "
        "call jax.block_until_ready in the loop.",
        RuntimeWarning,
        stacklevel=3,
    )


def _threads() -> int:
    """The threads of a CPU client that starts now: NPROC, else the cores of this process."""
    asked = os.environ.get("NPROC", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _reserve_threads(num_devices: int) -> None:
    """Asks for threads enough for so many devices, where that matters and comes in time."""
    wanted = max(_MIN_THREADS, _THREADS_PER_DEVICE * num_devices)
    if cpu_pool_can_deadlock() and _threads() < wanted:
        os.environ["NPROC"] = str(wanted)


def _configured_devices() -> int:
    """The CPU devices that JAX would start with now, as far as it has been told."""
    configured = jax.config.values["jax_num_cpu_devices"]  # -1 where not set
    flags = re.findall(rf"{_FLAG}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return configured if configured > 0 else int(flags[-1]) if flags else 1


_threads_at_import = _threads() if backends_started() else None  # None: NPROC still counts
if _threads_at_import is None:
    _reserve_threads(_configured_devices())
