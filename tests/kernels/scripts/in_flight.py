"""Many sharded calls in flight; started by tests/kernels/test_devices.py in a process of its own.

Arguments: the number of emulated devices, and what is done about the deadlock:
  import     the package is imported before JAX starts
  late       JAX starts before the import; each eager call is guarded
  unguarded  the package is not imported
  traced     JAX starts before the import; a guarded call is traced, and not run
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

NUM_CALLS = 100


def main(num_devices, mode):
    if mode in ("late", "traced"):
        jax.devices()
    guarded = _unguarded
    if mode != "unguarded":
        from jaxcomet.kernels.devices import guarded

    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("x",), axis_types=(AxisType.Auto,))
    rows = PartitionSpec("x")
    compiled = jax.jit(jax.shard_map(_body, mesh=mesh, in_specs=rows, out_specs=rows))

    def kernel(array):
        return guarded(compiled(array), mesh)

    ones = jax.device_put(jnp.ones((num_devices * 64, 64)), NamedSharding(mesh, rows))
    if mode == "traced":
        jax.eval_shape(kernel, ones)
        jax.eval_shape(kernel, ones)
        return
    kernel(ones).block_until_ready()
    chained = ones
    for _ in range(NUM_CALLS):
        chained = kernel(chained)
    independent = [kernel(ones) for _ in range(NUM_CALLS)]
    np.testing.assert_allclose(np.asarray(chained), 1.0, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(independent), 1.0, rtol=1e-5)
    print(f"{num_devices} devices finished")


def _unguarded(result, mesh):
    return result


def _body(block):
    """Eight collectives; ones stay ones: 0.5 + 0.25 max + 0.25 mean."""
    for _ in range(4):
        largest, mean = lax.pmax(jnp.max(block), "x"), lax.pmean(jnp.mean(block), "x")
        block = 0.5 * block + 0.25 * largest + 0.25 * mean
    return block


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
