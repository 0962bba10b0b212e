"""Dimensions of an operation on the axes of a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxcomet.kernels.errors import KernelError
from jaxcomet.kernels.partition import Partition, check_partitioner, pad, padded, partition
from tests.kernels import harness


def _split(mesh: str, axis):
    return partition("f", harness.mesh(mesh), axis, dimensions=("m", "n"), default="n")


def test_names_alone_mean_the_usual_dimension():
    assert _split("8", "x").axes == (("n", ("x",)),)
    assert _split("2x4", ("y", "x")).axes == (("n", ("y", "x")),)
    assert _split("2x4", None).axes == (("n", ("x", "y")),)


def test_a_mapping_names_dimensions():
    split = _split("2x4", {"m": "x", "n": "y"})
    assert (split.shards("m"), split.shards("n"), split.shards("m", "n")) == (2, 4, 8)
    assert split.spec("m", None, ("m", "n")) == P(("x",), None, ("x", "y"))


def test_without_a_mesh_nothing_is_split():
    split = partition("f", None, None, dimensions=("m",), default="m")
    assert split == Partition(mesh=None)
    assert split.shards("m") == 1
    assert split.map(lambda x: x + 1, (P(),), P())(1) == 2


@pytest.mark.parametrize(
    ("mesh", "axis", "message"),
    [
        (None, "x", "f: axis: got 'x' without a mesh; give mesh= too"),
        ("8", {"k": "x"}, "f: axis: got 'k'; expected m or n"),
        ("8", "y", "f: axis of n: got 'y'; expected x"),
        ("2x4", {"m": "x", "n": ("y", "x")}, "f: axis: got mesh axis 'x' for m and n; expected"),
        ("2x4", {"n": ("x", "x")}, "f: axis: got mesh axis 'x' for n and n; expected"),
    ],
    ids=str,
)
def test_axes_that_do_not_fit_are_refused(mesh, axis, message):
    devices = harness.mesh(mesh) if mesh else None
    with pytest.raises(KernelError) as error:
        partition("f", devices, axis, dimensions=("m", "n"), default="n")
    assert str(error.value).startswith(message)


def test_an_unknown_partitioner_is_refused():
    with pytest.raises(KernelError, match="f: partitioner: got 'pjit'; expected shard_map or auto"):
        check_partitioner("f", "pjit", None)


@pytest.mark.parametrize(
    ("size", "multiple", "expected"), [(5, 4, 8), (8, 4, 8), (1, 8, 8), (0, 4, 0)]
)
def test_padded_is_the_next_multiple(size, multiple, expected):
    assert padded(size, multiple) == expected


def test_padding_is_zeros_behind():
    np.testing.assert_array_equal(pad(jnp.ones((1, 2)), 1, 4), [[1, 1, 0, 0]])


@pytest.mark.parametrize("rows", [1, 3, 8, 13])
def test_each_element_is_somewhere_once(rows):
    """A sum over devices of what each one holds, for sizes that do and do not divide."""
    split = _split("2x4", {"m": "x", "n": "y"})
    x = jnp.arange(rows * 5.0).reshape(rows, 5) + 1
    doubled = split.map_padded(lambda x: 2 * x, (x,), [("m", "n")], ("m", "n"), {"m": rows, "n": 5})
    np.testing.assert_array_equal(doubled, 2 * x)
    total = split.map_padded(
        lambda x: jax.lax.psum(x.sum(axis=(0, 1)), ("x", "y"))[None, None],
        (x,),
        [("m", "n")],
        (None, None),
        {"m": rows, "n": 5},
    )
    assert float(total[0, 0]) == float(x.sum())


def test_an_axis_of_size_one_is_broadcast_not_split():
    split = _split("8", {"n": "x"})
    x, scale = jnp.ones((2, 16)), jnp.array([[3.0], [4.0]])
    product = split.map_padded(
        lambda x, scale: x * scale, (x, scale), [("m", "n")] * 2, ("m", "n"), {"m": 2, "n": 16}
    )
    np.testing.assert_array_equal(product, np.array([[3.0], [4.0]]) * np.ones((2, 16)))


def test_a_dimension_that_is_split_further_in_the_result_is_padded_for_both():
    # rows of 4 over k's devices in the result, whole in the operand: as of a split contraction
    split = _split("2x4", {"m": "x", "n": "y"})
    x = jnp.arange(3.0)[:, None] * jnp.ones((3, 8))
    rows = split.map_padded(
        lambda x: jax.lax.psum_scatter(x.sum(axis=1), "y", tiled=True),
        (x,),
        [("m", "n")],
        (("m", "n"),),
        {"m": 3, "n": 8},
    )
    np.testing.assert_array_equal(rows, 8 * np.arange(3.0))


def test_on_explicit_axes_any_sharding_of_an_argument_is_taken():
    mesh = jax.make_mesh((8,), ("x",))
    split = partition("f", mesh, "x", dimensions=("m", "n"), default="n")
    x = jax.device_put(jnp.arange(64.0).reshape(8, 8), jax.NamedSharding(mesh, P("x", None)))
    run = jax.jit(
        lambda x: split.map_padded(
            lambda x: x + 1, (x,), [("m", "n")], ("m", "n"), {"m": 8, "n": 8}
        )
    )
    assert run(x).sharding.spec == P(None, "x")
    np.testing.assert_array_equal(run(x), x + 1)
