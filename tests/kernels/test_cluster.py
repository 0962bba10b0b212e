"""Two processes of 4 emulated devices each: the dense result, and a message where one fails."""

import contextlib
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxcomet.kernels import cluster
from jaxcomet.kernels.devices import make_mesh
from jaxcomet.kernels.errors import KernelError
from tests.kernels.processes import SCRIPTS, environment

ONE_OF_TWO = SCRIPTS / "one_of_two.py"
LIMIT_S = 60.0  # far above the limits in the script, for a machine under load


@contextlib.contextmanager
def _two_processes(case, failing, folder):
    """Starts both, or the one that comes, and ends them whatever happens; SIGTERM would not."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = {}
    try:
        for rank in (0, 1):
            if case == "never" and rank == failing:
                continue
            with open(folder / f"output{rank}", "w") as output:
                processes[rank] = subprocess.Popen(
                    [sys.executable, ONE_OF_TWO, str(port), str(rank), case, str(failing), folder],
                    env=environment(),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def _inputs(folder):
    draw = np.random.default_rng(0)
    a, b, cotangent = (
        draw.normal(size=shape).astype(np.float32) for shape in ((4, 6), (6, 16), (4, 16))
    )
    np.savez(folder / "inputs.npz", a=a, b=b, cotangent=cotangent)
    return a.astype(np.float64), b.astype(np.float64), cotangent.astype(np.float64)


@pytest.mark.slow
@pytest.mark.multi_device
def test_two_processes_give_the_dense_value_and_gradients(tmp_path):
    a, b, cotangent = _inputs(tmp_path)
    with _two_processes("nothing", 1, tmp_path) as processes:
        for rank, process in processes.items():
            assert process.wait(2 * LIMIT_S) == 0, (tmp_path / f"output{rank}").read_text()
    weights = np.exp(a @ b)
    softmax = weights / weights.sum(axis=1, keepdims=True)
    # d softmax_j / d s_i = softmax_j (delta_ij - softmax_i)
    mean = (softmax * cotangent).sum(axis=1, keepdims=True)
    grad_logits = softmax * (cotangent - mean)
    for rank in (0, 1):
        got = np.load(tmp_path / f"rank{rank}.npz")
        np.testing.assert_allclose(got["value"], softmax, rtol=0, atol=1e-6)
        np.testing.assert_allclose(got["grad_a"], grad_logits @ b.T, rtol=0, atol=1e-5)
        np.testing.assert_allclose(got["grad_b"], a.T @ grad_logits, rtol=0, atol=1e-5)


CONNECTING = "connecting with the other processes at 127.0.0.1"
IN_COLLECTIVE = "softmax of the logits: no end within 5 s; the process ends here"
ABORTED = "Fatal Python error: Aborted"  # by XLA, with the stack; since process 0 is gone


START = "start: the processes differ in fingerprint: 'same' here"
FAILURES = {
    # those that wait longest first; case, failing process, status of the other and what it says
    ("unreported", 1): (1, "process 0 of 2: start: process 1 did not come within 10 s"),
    ("never", 1): (cluster.TIMED_OUT, f"process 0 of 2: {CONNECTING}"),
    ("never", 0): (cluster.TIMED_OUT, f"process 1 of 2: {CONNECTING}"),
    ("exits", 1): (cluster.TIMED_OUT, f"process 0 of 2: {IN_COLLECTIVE}"),
    ("raises", 1): (cluster.TIMED_OUT, f"process 0 of 2: {IN_COLLECTIVE}"),
    ("raises", 0): (cluster.TIMED_OUT, f"process 1 of 2: {IN_COLLECTIVE}"),
    ("stalls", 1): (cluster.TIMED_OUT, f"process 0 of 2: {IN_COLLECTIVE}"),
    ("exits", 0): (-6, ABORTED),
    ("differs", 1): (1, f"process 0 of 2: {START}"),
    ("differs", 0): (1, f"process 1 of 2: {START}"),
}
AT_ONCE = 4  # cases side by side, which mostly wait


@pytest.mark.slow
@pytest.mark.multi_device
def test_the_other_process_ends_with_a_message_in_time(tmp_path):
    def outcome(case, failing):
        folder = tmp_path / f"{case}{failing}"
        folder.mkdir()
        _inputs(folder)
        with _two_processes(case, failing, folder) as processes:
            status = processes[1 - failing].wait(LIMIT_S)
        return status, (folder / f"output{1 - failing}").read_text()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {key: pool.submit(outcome, *key) for key in FAILURES}
    for key, (expected, message) in FAILURES.items():
        status, said = running[key].result()
        assert status == expected, (key, said)
        assert message in said, key
        if message is ABORTED:
            assert "in main" in said, key


def test_a_wait_that_takes_too_long_ends_the_process():
    program = """
import time
from jaxcomet.kernels.cluster import time_limit
with time_limit(30.0, "nothing much"):
    pass
with time_limit(0.05, "step 5: psum"):
    time.sleep(30)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == cluster.TIMED_OUT
    assert done.stderr.startswith(
        "process 0 of 1: step 5: psum: no end within 0.05 s; the process ends here\n"
    )
    assert 'File "<string>", line 7 in <module>' in done.stderr  # where it was


def test_an_exception_leaves_a_time_limit_at_once_and_no_thread_stays():
    with pytest.raises(ZeroDivisionError), cluster.time_limit(60.0, "dividing"):
        raise ZeroDivisionError
    for thread in threading.enumerate():
        if thread.name == "time_limit":
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def test_one_process_agrees_with_itself():
    cluster.agree("alone", {"fingerprint": "any"}, timeout_s=1.0)


@pytest.mark.multi_device
def test_arrays_go_to_the_devices_and_back():
    mesh = make_mesh((2, 4))
    whole = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    spec = PartitionSpec("x", "y")
    for value, shape in ((whole, None), (jnp.asarray(whole), None), (lambda p: whole[p], (8, 8))):
        array = cluster.global_array(mesh, spec, value, shape)
        assert array.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2)
        assert {shard.data.shape for shard in array.addressable_shards} == {(4, 2)}
        np.testing.assert_array_equal(cluster.to_host(array), whole)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: cluster.start("localhost", 2, 0),
            "coordinator: got 'localhost'; expected address",
        ),
        (lambda: cluster.start("h:1", 2, 2), "process_id: got 2 of 2 processes; expected 0 to 1"),
        (
            lambda: cluster.global_array(make_mesh(1), PartitionSpec(), lambda place: np.ones(3)),
            "shape: got None; a function as value needs it",
        ),
        (
            lambda: cluster.global_array(make_mesh(1), PartitionSpec(), np.ones(3), (4,)),
            r"shape: got \(4,\) for a value of shape \(3,\)",
        ),
    ],
)
def test_what_cannot_start_is_refused(call, message):
    with pytest.raises(KernelError, match=message):
        call()
