"""One process of two, 4 emulated devices each; started by tests/kernels/test_cluster.py.

Arguments: the port, the rank, the case, the rank that fails, and a folder. That rank does what the
case says:
  nothing      value and gradient of GEMM-softmax over 8 devices are written to the folder by both
  exits        it leaves without a word before the collective
  raises       it raises before the collective
  stalls       it sleeps before the collective
  differs      its fingerprint is another one
  unreported   it raises before the processes compare themselves
  never        it is not started
"""

import hashlib
import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

PATIENT_S = 60.0
CONNECT_S = {"never": 5.0, "unreported": 10.0}
COLLECTIVE_S = 5.0


def main(port, rank, case, failing, folder):
    from jaxcomet.kernels import cluster, devices

    fails = rank == failing
    if fails and case == "unreported":
        jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
        raise RuntimeError("a bug")
    cluster.start(
        f"127.0.0.1:{port}",
        2,
        rank,
        num_devices=4,
        fingerprint="other" if fails and case == "differs" else "same",
        timeout_s=CONNECT_S.get(case, PATIENT_S),
        heartbeat_timeout_s=20.0,
        shutdown_timeout_s=20.0,
    )
    if fails and case == "exits":
        os._exit(3)
    if fails and case == "raises":
        raise RuntimeError("a bug")
    if fails and case == "stalls":
        time.sleep(PATIENT_S)
    program, arguments = _softmax(cluster, devices.make_mesh(8), np.load(f"{folder}/inputs.npz"))
    if case == "nothing":
        text = hashlib.sha256(program.as_text().encode()).hexdigest()
        cluster.agree("program", {"text": text})
    compiled = program.compile()
    limit_s = PATIENT_S if case == "nothing" else COLLECTIVE_S
    with cluster.time_limit(limit_s, "softmax of the logits"):
        results = [cluster.to_host(result) for result in compiled(*arguments)]
    np.savez(f"{folder}/rank{rank}.npz", value=results[0], grad_a=results[1], grad_b=results[2])


def _softmax(cluster, mesh, inputs):
    """The lowered program and its arguments, columns split over both processes."""
    from jaxcomet.kernels.gemm_softmax.api import gemm_softmax

    def value_and_gradients(a, b, cotangent):
        def loss(a, b):
            probabilities = gemm_softmax(a, b, mesh=mesh)
            return jnp.sum(probabilities * cotangent), probabilities

        (_, probabilities), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(a, b)
        return probabilities, *gradients

    columns = PartitionSpec(None, "x")
    arguments = (
        cluster.global_array(mesh, PartitionSpec(), inputs["a"]),
        cluster.global_array(mesh, columns, lambda place: inputs["b"][place], inputs["b"].shape),
        cluster.global_array(mesh, columns, inputs["cotangent"]),
    )
    return jax.jit(value_and_gradients).lower(*arguments), arguments


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
