"""Emulated devices, meshes, and the guard against the deadlock of jaxlib before 0.12."""

import subprocess
import sys

import jax
import pytest
from jax.sharding import AxisType

from jaxcomet._compat import cpu_pool_can_deadlock
from jaxcomet.kernels.devices import emulate, guarded, make_mesh
from jaxcomet.kernels.errors import KernelError
from tests.kernels.processes import SCRIPTS, environment

# XLA ends a process that hangs in a collective; seconds here, a minute by default.
FAIL_SOON = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=5 "
    "--xla_cpu_collective_call_terminate_timeout_seconds=10"
)
# Where it is to hang, and nothing else is waited for.
FAIL_AT_ONCE = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=2 "
    "--xla_cpu_collective_call_terminate_timeout_seconds=5"
)


def _run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _in_flight(num_devices: int, mode: str) -> subprocess.CompletedProcess[str]:
    """The script, with as many threads as devices, as on a machine of few cores."""
    soon = FAIL_AT_ONCE if mode == "unguarded" else FAIL_SOON
    flags = f"--xla_force_host_platform_device_count={num_devices} {soon}"
    return _run(
        str(SCRIPTS / "in_flight.py"),
        str(num_devices),
        mode,
        XLA_FLAGS=flags,
        NPROC=str(num_devices),
    )


@pytest.mark.multi_device
@pytest.mark.parametrize("mode", ["import", "late"])
def test_any_number_of_sharded_calls_in_flight_finishes(mode):
    done = _in_flight(8, mode)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "8 devices finished\n"


@pytest.mark.slow
@pytest.mark.multi_device
@pytest.mark.parametrize(("num_devices", "mode"), [(2, "late"), (32, "import"), (32, "late")])
def test_few_and_many_devices_are_guarded_too(num_devices, mode):
    done = _in_flight(num_devices, mode)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.multi_device
@pytest.mark.skipif(
    not cpu_pool_can_deadlock(), reason="jaxlib 0.12 has threads of its own for collectives"
)
def test_without_the_guard_the_same_program_hangs():
    done = _in_flight(8, "unguarded")
    assert done.returncode != 0
    assert "finished" not in done.stdout


@pytest.mark.multi_device
def test_a_traced_call_with_too_few_threads_warns_once():
    done = _in_flight(8, "traced")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning") == (1 if cpu_pool_can_deadlock() else 0)


@pytest.mark.parametrize(("asked", "threads"), [("7", "24"), ("40", "40")])
def test_the_import_asks_for_two_threads_a_device_and_never_for_fewer(asked, threads):
    program = "import os, jaxcomet.kernels.devices; print(os.environ['NPROC'])"
    done = _run("-c", program, JAX_NUM_CPU_DEVICES="12", NPROC=asked)
    assert done.stdout.strip() == (threads if cpu_pool_can_deadlock() else asked), done.stderr


def test_emulate_overrules_the_environment_and_refuses_when_late():
    program = """
from jaxcomet.kernels.devices import emulate
emulate(3)
emulate(3)
import jax
print(jax.device_count())
emulate(4)
"""
    done = _run("-c", program, XLA_FLAGS="--xla_force_host_platform_device_count=5")
    assert done.stdout == "3\n"
    assert (
        "KernelError: emulate: got 3 cpu devices; expected 4 cpu devices; JAX had started before"
        in done.stderr
    )


def test_emulate_refuses_no_devices():
    with pytest.raises(KernelError, match="num_devices: got 0; expected at least 1"):
        emulate(0)


@pytest.mark.multi_device
def test_a_mesh_has_automatic_axes_over_the_first_devices():
    mesh = make_mesh((2, 3), ("rows", "columns"))
    assert dict(mesh.shape) == {"rows": 2, "columns": 3}
    assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)
    assert list(mesh.devices.flat) == jax.devices()[:6]
    assert make_mesh(4).axis_names == ("x",)
    assert make_mesh((2, 2)).axis_names == ("x", "y")
    assert make_mesh(2, "ring").axis_names == ("ring",)


@pytest.mark.parametrize(
    ("sizes", "names", "message"),
    [
        (0, None, r"sizes: got \(0,\); expected at least 1"),
        ((), None, r"sizes: got \(\); expected at least 1"),
        ((2, 2), ("x",), "expected another name for each axis"),
        ((2, 2), ("x", "x"), "expected another name for each axis"),
        ((1, 1, 1, 1), None, "expected another name for each axis"),
        ((512, 2), None, r"1024 devices; there are \d+; for more .*emulate\(1024\)"),
    ],
)
def test_a_mesh_that_cannot_be_made_is_refused(sizes, names, message):
    with pytest.raises(KernelError, match=message):
        make_mesh(sizes, names)


def test_guarded_returns_its_result():
    result = {"a": jax.numpy.arange(3)}
    assert guarded(result, None) is result
    assert guarded(result, make_mesh(2)) is result
