"""What attention compiles to: collectives, memory, one program for many calls, transformations."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxcomet.kernels.attention import attention, reference
from jaxcomet.kernels.attention.layout import head_repeats
from jaxcomet.kernels.attention.plan import block_size, usual_blocks
from jaxcomet.kernels.attention.visibility import key_blocks, key_limits, part_limits
from jaxcomet.kernels.compiled import collectives, memory_bytes
from jaxcomet.kernels.errors import KernelError
from tests.kernels import harness
from tests.kernels.attention_cases import operands

UNOPTIMIZED: dict[str, Any] = {"xla_backend_optimization_level": 0}

# B, T, S, N, K, H, Hv = 1, 32, 64, 4, 4, 8, 16 in float32, 4 devices.
QUERY, KEY, VALUE, OUT = (4 * n for n in (32 * 4 * 8, 64 * 4 * 8, 64 * 4 * 16, 32 * 4 * 16))
ROWS = 4 * 32 * 4
MOVED = {
    # split: (forward, backward) as kind, bytes of the result on a device, times
    "heads": ([], []),
    "batch": ([], []),
    "queries": ([], [("all-reduce", KEY, 1), ("all-reduce", VALUE, 1)]),
    # maximum and sum of all four parts, then the output; the gradient of the query
    "keys": (
        [("all-gather", 4 * 2 * ROWS, 1), ("all-reduce", OUT, 1)],
        [("all-reduce", QUERY, 1)],
    ),
    "separate": (
        [("all-reduce", ROWS, 1), ("all-reduce", ROWS, 1), ("all-reduce", OUT, 1)],
        [("all-reduce", QUERY, 1)],
    ),
    # keys and values whole on each device, in both passes; each keeps its part of their gradients
    "sequence": (
        [("all-gather", KEY, 1), ("all-gather", VALUE, 1)],
        [
            ("all-gather", KEY, 1),
            ("all-gather", VALUE, 1),
            ("reduce-scatter", KEY // 4, 1),
            ("reduce-scatter", VALUE // 4, 1),
        ],
    ),
    # a quarter of them three times on; their gradients once more, home
    "ring": (
        [("collective-permute", KEY // 4, 3), ("collective-permute", VALUE // 4, 3)],
        [("collective-permute", size // 4, 3) for size in (KEY, VALUE)]
        + [("collective-permute", size // 4, times) for size in (KEY, VALUE) for times in (3, 1)],
    ),
}


@functools.cache
def moved(split, part):
    """The collectives of the forward pass, or of the backward pass alone."""
    batch = 4 if split == "batch" else 1
    shapes = [(batch, 32, 4, 8), (batch, 64, 4, 8), (batch, 64, 4, 16)]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    dimension = {"ring": "sequence", "separate": "keys"}.get(split, split)
    function = functools.partial(
        attention,
        strategy="ring" if split == "ring" else "flash",
        mesh=harness.mesh("4"),
        axis={dimension: "x"},
        reduction="separate" if split == "separate" else "combined",
        is_causal=True,
    )
    if part == "backward":  # its inputs are what the forward pass has kept
        _, pull = jax.eval_shape(functools.partial(jax.vjp, function), *arrays)
        out = jax.ShapeDtypeStruct((batch, 32, 4, 16), jnp.float32)
        program = jax.jit(lambda pull, x: pull(x)).lower(pull, out)
    else:
        program = jax.jit(function).lower(*arrays)
    found = collectives(program.compile(UNOPTIMIZED))
    assert all(one.group_size == 4 for one in found)
    return sorted((one.kind, one.bytes, one.times) for one in found)


@pytest.mark.parametrize("part", ["forward", "backward"])
@pytest.mark.parametrize("split", MOVED)
def test_moves_between_devices_no_more_than_its_split_needs(split, part):
    expected = MOVED[split][part == "backward"]
    got = moved(split, part)
    if split in ("queries", "separate") and len(got) < len(expected):
        # XLA may make one all-reduce of two that are independent
        assert {kind for kind, _, _ in got} == {"all-reduce"}
        assert sum(size for _, size, _ in got) == sum(size for _, size, _ in expected)
        return
    assert got == sorted(expected)


def memory(strategy, length, mesh=None):
    """All bytes on a device of the gradients, for one head of width 16."""
    x = jax.ShapeDtypeStruct((1, length, 1, 16), jnp.float32)
    options: dict[str, Any] = {"strategy": strategy, "is_causal": True}
    if mesh is not None:
        options["mesh"] = harness.mesh(mesh)
        split = NamedSharding(harness.mesh(mesh), PartitionSpec(None, "x"))
        x = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=split)
    gradients = jax.grad(lambda *x: jnp.sum(attention(*x, **options)), (0, 1, 2))
    return memory_bytes(jax.jit(gradients).lower(x, x, x).compile(UNOPTIMIZED)).total_bytes


@pytest.mark.parametrize(("strategy", "mesh"), [("flash", None), ("ring", "4")])
def test_memory_grows_with_the_length_not_with_its_square(strategy, mesh):
    short, long = (memory(strategy, length, mesh) for length in (8192, 32768))
    assert long < 4.2 * short
    # whole scores would be 4 GiB, or a quarter of it on each of four devices
    assert long < 32768**2 * 4 / 100


def test_a_whole_matrix_of_scores_shows_in_the_memory_of_unfused_alone():
    scores = 4 * 1024**2
    assert memory("unfused", 1024) > 2 * scores
    assert memory("flash", 1024) < scores


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "mesh"), [("flash", None), ("ring", "4")])
def test_a_sequence_of_32768_has_the_right_rows(strategy, mesh):
    length, width = 32768, 8
    query, key, value = (harness.normal((1, length, 1, width), seed=seed) for seed in range(3))
    options: dict[str, Any] = {"strategy": strategy, "is_causal": True}
    if mesh is not None:
        options["mesh"] = harness.mesh(mesh)
    out = np.asarray(attention(query, key, value, **options))
    q, k, v = (np.asarray(x[0, :, 0], np.float64) for x in (query, key, value))
    for row in (0, 511, 512, 12345, length - 1):
        scores = k[: row + 1] @ q[row] / np.sqrt(width)
        weights = np.exp(scores - scores.max())
        np.testing.assert_allclose(
            out[0, row, 0], weights @ v[: row + 1] / weights.sum(), atol=1e-5
        )


def test_blocks_that_no_query_sees_are_not_counted():
    limits = key_limits(1, 8, 8, is_causal=True, query_lengths=None, key_lengths=None)
    # blocks of 4: the first four queries need one block of keys, the others two
    assert [int(key_blocks(rows, 4)) for rows in (limits[:, :4], limits[:, 4:])] == [1, 2]
    # the second half of the keys, as a device of a ring has it
    second = part_limits(limits, 4, 4)
    assert [int(key_blocks(rows, 4)) for rows in (second[:, :4], second[:, 4:])] == [0, 1]


def test_limits_carry_lengths_and_causality():
    limits = key_limits(
        2,
        4,
        5,
        is_causal=True,
        query_lengths=jnp.array([2, 9]),  # more than there are: all
        key_lengths=jnp.array([3, 2]),
    )
    # i + 1 + 3 - 2, until 2; i + 1 + 2 - 4, which is nothing for the first two
    np.testing.assert_array_equal(limits, [[2, 3, 0, 0], [0, 0, 1, 2]])


def test_sizes_of_blocks_cover_without_much_padding():
    assert block_size(256, 1024) == 256
    assert block_size(256, 257) == 136  # two of 136 for 257, not two of 256
    assert block_size(256, 100) == 100
    assert usual_blocks(4) == (256, 512)
    assert usual_blocks(8) == (256, 256)
    assert usual_blocks(10**6) == (128, 128)


def test_key_heads_are_repeated_only_where_it_helps():
    assert head_repeats(8, 4, 4) == 1
    assert head_repeats(2, 4, 8) == 4
    assert head_repeats(2, 6, 4) == 2
    assert head_repeats(3, 4, 2) == 2
    assert head_repeats(1, 3, 2) == 1  # padded


def test_a_second_call_with_other_values_compiles_nothing():
    first, second = (operands(queries=6, keys=7, seed=seed) for seed in (0, 10))
    options: dict[str, Any] = {"mesh": harness.mesh("2"), "strategy": "ring", "is_causal": True}
    lengths = jnp.array([3, 7]), jnp.array([5, 2])
    jax.block_until_ready(attention(**first, key_value_seq_lengths=lengths[0], **options))
    with harness.compilations() as compiled:
        jax.block_until_ready(attention(**second, key_value_seq_lengths=lengths[1], **options))
    assert compiled == []


@pytest.mark.parametrize(
    ("strategy", "mesh", "axis"),
    [
        pytest.param("flash", "2", {"keys": "x"}, marks=pytest.mark.slow),
        ("ring", "4", {"sequence": "x"}),
    ],
    ids=str,
)
def test_under_vmap_scan_remat_and_grad_at_once(strategy, mesh, axis):
    # two layers by scan, each rematerialised, over a batch by vmap with lengths of its own
    options: dict[str, Any] = {"strategy": strategy, "mesh": harness.mesh(mesh), "axis": axis}
    query, key, value = (harness.normal((2, 1, 8, 2, 4), seed=seed) for seed in range(3))
    lengths = jnp.array([[8], [3]])

    def loss(function, query, key, value):
        def one(query, key, value, lengths):
            @jax.checkpoint
            def layer(x, _):
                return x + function(x, key, value, key_value_seq_lengths=lengths), None

            return jax.lax.scan(layer, query, None, length=2)[0]

        return jnp.sum(jnp.sin(jax.vmap(one)(query, key, value, lengths)))

    def plain(*arguments, **options):
        return reference.attention(*arguments, is_causal=True, **options)[0]

    def slopes(function):
        both = jax.value_and_grad(functools.partial(loss, function), (0, 1, 2))
        return jax.jit(both, compiler_options=UNOPTIMIZED)(query, key, value)

    kernel = functools.partial(attention, is_causal=True, block_q=4, block_k=4, **options)
    results, expected = jax.tree.leaves(slopes(kernel)), jax.tree.leaves(slopes(plain))
    for got, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_gradients_inside_and_outside_jit_and_closed_over():
    query, key, value = (harness.normal((1, 6, 2, 4), seed=seed) for seed in range(3))
    kernel = functools.partial(attention, mesh=harness.mesh("2"), strategy="ring")

    def loss(key):
        return jnp.sum(jnp.sin(kernel(query, key, value)))  # query and value closed over

    inside = jax.jit(jax.grad(loss))(key)
    outside = jax.grad(jax.jit(loss))(key)
    exact = jax.jit(
        jax.grad(lambda key: jnp.sum(jnp.sin(reference.attention(query, key, value)[0])))
    )(key)
    np.testing.assert_allclose(inside, exact, atol=1e-6)
    np.testing.assert_allclose(outside, exact, atol=1e-6)


def test_a_mesh_with_explicit_axes_and_sizes_that_do_not_divide():
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    query, key, value = (harness.normal((2, 7, 2, 4), seed=seed) for seed in range(3))
    placed = jax.device_put(query, NamedSharding(mesh, PartitionSpec("x")))
    options: dict[str, Any] = {
        "mesh": mesh,
        "strategy": "ring",
        "axis": {"heads": "x", "sequence": "y"},
    }

    @jax.jit
    def both(query, key, value):
        out, pull = jax.vjp(functools.partial(attention, **options), query, key, value)
        return out, *pull(jnp.ones_like(out))

    @jax.jit
    def plain(query, key, value):
        out, pull = jax.vjp(lambda *x: reference.attention(*x)[0], query, key, value)
        return out, *pull(jnp.ones_like(out))

    for got, wanted in zip(both(placed, key, value), plain(query, key, value), strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-6)


def test_a_narrow_wire_rounds_keys_values_and_sums():
    query, key, value = (harness.normal((1, 8, 2, 4), seed=seed) for seed in range(3))
    exact = jax.jit(reference.attention)(query, key, value)[0]
    for strategy, axis in (("ring", "sequence"), ("flash", "keys")):
        out = attention(
            query,
            key,
            value,
            strategy=strategy,
            mesh=harness.mesh("2"),
            axis={axis: "x"},
            wire_dtype="bfloat16",
        )
        error = float(jnp.max(jnp.abs(out - exact)))
        assert 1e-5 < error < 3e-2


X = np.zeros((2, 4, 2, 8), np.float32)
MESH = {"mesh": harness.mesh("2x4")}
WRONG: dict[str, dict[str, Any]] = {
    "strategy: got 'best'; expected unfused or partial or flash or ring": {"strategy": "best"},
    "reduction: got 'none'; expected combined or separate": {"reduction": "none"},
    "partitioner: got 'gspmd'": {"partitioner": "gspmd"},
    "axis: got 'x' without a mesh": {"axis": "x"},
    "axis: got 'rows'; expected batch or heads": {**MESH, "axis": {"rows": "x"}},
    "axis: got sequence together with keys": {**MESH, "axis": {"sequence": "x", "keys": "y"}},
    'got heads split with strategy "ring"; expected sequence': {
        **MESH,
        "axis": {"heads": "x"},
        "strategy": "ring",
    },
    'partitioner: got "auto" with strategy "ring"': {
        **MESH,
        "strategy": "ring",
        "partitioner": "auto",
    },
    r"query: got shape \(4, 8\); expected \[T, N, H\]": {"query": X[0, :, 0]},
    r"key: got shape \(4, 2, 8\); expected \[B, S, K, H\]": {"key": X[0]},
    r"query: got dtype int32; expected a floating-point": {"query": X.astype(np.int32)},
    r"got 8 for query axis 3 \(H\), 4 for key axis 3 \(H\)": {"key": X[..., :4]},
    r"got 4 for key axis 1 \(S\), 3 for value axis 1 \(S\)": {"value": X[:, :3]},
    r"got 2 for query axis 0 \(B\), 1 for key axis 0 \(B\)": {"key": X[:1]},
    "got 3 query heads and 2 key heads; expected a multiple": {"query": X[:, :, [0, 0, 0]]},
    r"bias: got shape \(3, 4\); expected one that broadcasts to \[B, N, T, S\] = \(2, 2, 4, 4\)": {
        "bias": np.zeros((3, 4), np.float32)
    },
    r"bias: got shape \(1, 1, 1, 4, 4\)": {"bias": np.zeros((1, 1, 1, 4, 4), np.float32)},
    "mask: got dtype float32; expected booleans": {"mask": np.zeros((4, 4), np.float32)},
    r"query_seq_lengths: got int32 \(3,\); expected integers \[B\] = \(2,\)": {
        "query_seq_lengths": np.zeros(3, np.int32)
    },
    r"key_value_seq_lengths: got float32 \(2,\)": {
        "key_value_seq_lengths": np.zeros(2, np.float32)
    },
    "block_q: got 0; expected at least 1": {"block_q": 0},
    "logits_soft_cap: got 0.0; expected a positive number": {"logits_soft_cap": 0.0},
}


@pytest.mark.parametrize("message", WRONG)
def test_refuses_what_does_not_fit_by_name(message):
    arguments = {"query": X, "key": X, "value": X} | WRONG[message]
    arrays: dict[str, Any] = {
        name: jnp.asarray(value) if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }
    with pytest.raises(KernelError, match=message):
        attention(**arrays)


def test_refuses_a_traced_scale():
    with pytest.raises(KernelError, match="scale: got a traced array"):
        jax.jit(lambda scale: attention(*(jnp.asarray(X),) * 3, scale=scale))(1.0)
