"""Programs of several processes: a start that checks them against each other, and limits on waits.

The one idea: no process waits without a limit, and one that gives up says which it is and what it
waited for. A process that waits in a collective for one that died, raised or took another path
cannot be interrupted from Python, so `time_limit` ends it.

What JAX does of itself: a process that dies is noticed after `heartbeat_timeout_s`, one that raises
or ends early after `shutdown_timeout_s`, the end of process 0 at once; XLA then aborts the others
(exit status 134), and since `start` enables faulthandler the stack says where they were. With a
`time_limit` that is shorter, its message comes first. JAX handles SIGTERM itself in such a process:
stop one that hangs by SIGKILL.
"""

import contextlib
import faulthandler
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib.version import __version__ as jaxlib_version

from jaxcomet._compat import coordination_client, process_place
from jaxcomet.kernels.devices import emulate
from jaxcomet.kernels.errors import KernelError

TIMED_OUT = 124
"""The exit status of a process that `time_limit` ends, that of timeout(1)."""

_LOOPBACK = ("localhost", "127.0.0.1")


def start(
    coordinator: str,
    num_processes: int,
    process_id: int,
    *,
    num_devices: int | None = None,
    fingerprint: str = "",
    timeout_s: float = 60.0,
    heartbeat_timeout_s: float = 100.0,
    shutdown_timeout_s: float = 100.0,
) -> None:
    """Connects this process to the others and checks that all run the same program.

    It must come before the first array and `jax.devices()`. The processes compare the versions of
    jax and jaxlib, the width of numbers and the fingerprint, then start their backends and compare
    platform and number of devices; only then may a collective begin. Where a process never comes,
    the others end as by `time_limit`. The connection ends with the process, or before by
    `jax.distributed.shutdown`. Device ids have gaps: on a CPU those of process 1 begin at 2048.

    Args:
      coordinator: address and port of process 0, such as ``"10.0.0.1:1234"``. On the loopback
        address the port is open to this machine alone, else on all its networks.
      num_processes: how many there are.
      process_id: which this is, from 0.
      num_devices: CPU devices to emulate in this process; None leaves them as they are.
      fingerprint: anything that must be the same everywhere: a commit, the arguments of the
        command, a hash of the settings.
      timeout_s: the limit on each of the steps: connecting, comparing, starting the backends.
      heartbeat_timeout_s: after so long without a sign of life JAX takes a process for dead, and
        ends the others.
      shutdown_timeout_s: how long a process that ends waits for the others to end, before JAX ends
        them.

    Raises:
      KernelError: a rank outside the processes, no port in the address, or processes that differ.
      TimeoutError: a process connected but did not report in time.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal():
        raise KernelError(
            f"start: coordinator: got {coordinator!r}; expected address and port of process 0, "
            "such as '127.0.0.1:1234'"
        )
    if not 0 <= process_id < num_processes:
        raise KernelError(
            f"start: process_id: got {process_id} of {num_processes} processes; expected 0 to "
            f"{num_processes - 1}"
        )
    if not faulthandler.is_enabled():
        faulthandler.enable()
    here = f"process {process_id} of {num_processes}"
    connecting = f"connecting with the other processes at {coordinator} (have all been started?)"
    with _ending(timeout_s, f"{here}: {connecting}"):
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            cluster_detection_method="deactivate",
            initialization_timeout=math.ceil(2.0 * timeout_s) + 1,  # ours is to come first
            heartbeat_timeout_seconds=math.ceil(heartbeat_timeout_s),
            shutdown_timeout_seconds=math.ceil(shutdown_timeout_s),
            coordinator_bind_address=coordinator if host in _LOOPBACK else None,
        )
    versions = {"jax": jax.__version__, "jaxlib": jaxlib_version}
    width = {"dtype of float": str(jnp.result_type(float))}  # jax_enable_x64
    agree("start", {**versions, **width, "fingerprint": fingerprint}, timeout_s=timeout_s)
    with time_limit(timeout_s, "starting the backends, which wait for each other"):
        if num_devices is not None:
            emulate(num_devices)
        devices = jax.local_devices()
    agree(
        "devices",
        {"platform": devices[0].platform, "devices of a process": str(len(devices))},
        timeout_s=timeout_s,
    )


def agree(step: str, facts: Mapping[str, str], *, timeout_s: float = 60.0) -> None:
    """Waits for all processes and checks that they bring the same facts; a barrier, no collective.

    Before the first run of a large program, its text is a fact to compare::

        program = jax.jit(f).lower(*arguments).as_text()
        agree("step", {"program": hashlib.sha256(program.encode()).hexdigest()})

    Args:
      step: a name for messages, another one for each call.
      facts: what must be the same everywhere, by name.
      timeout_s: how long to wait for the others.

    Raises:
      KernelError: they differ; the message says in what, and between which processes.
      TimeoutError: a process did not come in time; the message says which.
    """
    rank, num_processes = process_place()
    client = coordination_client()
    if client is None:
        return
    here = f"process {rank} of {num_processes}: {step}"
    client.key_value_set(_key(step, rank), json.dumps(dict(facts)))
    until = time.monotonic() + timeout_s
    for other in range(num_processes):
        remaining_ms = max(1, round(1000 * (until - time.monotonic())))
        try:
            theirs = json.loads(client.blocking_key_value_get(_key(step, other), remaining_ms))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            raise TimeoutError(
                f"{here}: process {other} did not come within {timeout_s:g} s; see what it says, "
                "or whether it runs"
            ) from error
        for name in sorted({*facts, *theirs}):
            if facts.get(name) != theirs.get(name):
                raise KernelError(
                    f"{here}: the processes differ in {name}: {facts.get(name)!r} here, "
                    f"{theirs.get(name)!r} in process {other}; start the same program everywhere"
                )


@contextlib.contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Ends this process with a message where the body does not return in time.

    JAX returns before a result is there: wait for it in the body, by `jax.block_until_ready`.
    The message names the process and `what`, the stacks of all threads follow, both on standard
    error; the exit status is `TIMED_OUT`. Nothing else is run or flushed. An exception in the body
    passes through, and so does an exit.

    Args:
      seconds: the limit.
      what: what is done in the body, such as ``"step 5: psum of the gradient"``.

    Example:
      >>> with time_limit(60.0, "adding"):
      ...     1 + 1
      2
    """
    rank, num_processes = process_place()
    with _ending(seconds, f"process {rank} of {num_processes}: {what}"):
        yield


def global_array(
    mesh: Mesh,
    spec: PartitionSpec,
    value: Array | np.ndarray | Callable[[tuple[slice, ...]], np.ndarray],
    shape: tuple[int, ...] | None = None,
) -> Array:
    """An array over the devices of all processes, of which each process makes its own part.

    Args:
      mesh: devices of all processes.
      spec: the mesh axes of each axis.
      value: the whole array, the same in each process; or a function from the place of a block (a
        slice for each axis) to the block, called for the blocks of this process.
      shape: that of the whole array, for a function.

    Raises:
      KernelError: a function without a shape, or an array with another one.
    """
    if callable(value):
        if shape is None:
            raise KernelError("global_array: shape: got None; a function as value needs it")
        block: Callable[..., np.ndarray] = value
    else:
        whole = np.asarray(value)
        if shape is not None and shape != whole.shape:
            raise KernelError(
                f"global_array: shape: got {shape} for a value of shape {whole.shape}; leave it out"
            )
        shape, block = whole.shape, whole.__getitem__
    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), block)


def to_host(array: Array) -> np.ndarray:
    """The whole of an array, in each process.

    Where a process has all of it, it reads its own; else the parts are gathered, by a collective
    that all processes must call.

    Returns:
      The same shape and dtype, whatever the number of processes.
    """
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


@contextlib.contextmanager
def _ending(seconds: float, who_and_what: str) -> Iterator[None]:
    """Ends the process where the body takes longer."""
    done = threading.Event()

    def watch() -> None:
        if done.wait(seconds):
            return
        try:
            sys.stderr.write(
                f"{who_and_what}: no end within {seconds:g} s; the process ends here\n"
            )
            sys.stderr.flush()
            faulthandler.dump_traceback()
        finally:  # whatever becomes of the message: sys.exit would end this thread alone
            os._exit(TIMED_OUT)

    threading.Thread(target=watch, name="time_limit", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _key(step: str, rank: int) -> str:
    return f"jaxcomet/{step}/{rank}"
