"""Collectives and memory of compiled programs: real ones with sizes by hand, and printed forms."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxcomet.kernels.compiled import collectives, memory_bytes, total_bytes
from jaxcomet.kernels.devices import make_mesh
from jaxcomet.kernels.errors import KernelError


def _compiled(body, *arrays, in_specs, out_specs):
    mesh = make_mesh((2, 4))
    mapped = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
    return jax.jit(mapped).lower(*arrays).compile()


def _seen(found):
    return sorted((each.kind, each.dtype, each.bytes, each.group_size) for each in found)


@pytest.mark.multi_device
def test_every_kind_has_the_bytes_of_its_result_on_one_device():
    def body(a, b, c, d, e):
        # Each part is 8 x 4 float32, 128 bytes; x has 2 devices, y has 4.
        ring = [(place, (place + 1) % 4) for place in range(4)]
        return (
            lax.psum(a, "y"),
            lax.all_gather(b, "x"),  # two parts
            lax.psum_scatter(c, "y", tiled=True),  # a quarter of a part
            lax.ppermute(d, "y", ring),
            lax.all_to_all(e, "y", 0, 0, tiled=True),
        )

    split = PartitionSpec("x", "y")
    out = (PartitionSpec("x"), PartitionSpec(None, "x", "y"), split, split, split)
    arrays = [jnp.ones((16, 16))] * 5
    found = collectives(_compiled(body, *arrays, in_specs=(split,) * 5, out_specs=out))
    assert _seen(found) == [
        ("all-gather", "f32", 256, 2),
        ("all-reduce", "f32", 128, 4),
        ("all-to-all", "f32", 128, 4),
        ("collective-permute", "f32", 128, 4),
        ("reduce-scatter", "f32", 32, 4),
    ]
    assert [each.times for each in found] == [1] * 5
    assert {each.kind: each.elements for each in found}["all-gather"] == 64
    assert total_bytes(found) == {
        "all-gather": 256,
        "all-reduce": 128,
        "all-to-all": 128,
        "collective-permute": 128,
        "reduce-scatter": 32,
    }


@pytest.mark.multi_device
def test_several_arrays_in_one_collective_are_one_and_keep_their_dtype():
    def body(a, b):
        # Merged by XLA, or not: parts of 8 x 4 and 8 float32. A CPU would widen bfloat16.
        total, row = lax.psum((a, a[:, 0]), ("x", "y"))
        return total, row, lax.all_gather(b, ("x", "y"))

    found = collectives(
        _compiled(
            body,
            jnp.ones((16, 16)),
            jnp.ones((64,), jnp.int8),
            in_specs=(PartitionSpec("x", "y"), PartitionSpec(("x", "y"))),
            out_specs=(PartitionSpec(), PartitionSpec(), PartitionSpec(None, ("x", "y"))),
        )
    )
    assert sum(each.bytes for each in found if each.kind == "all-reduce") == 4 * (32 + 8)
    assert sum(each.elements for each in found if each.kind == "all-reduce") == 40
    assert {each.group_size for each in found} == {8}
    assert [each.bytes for each in found if each.kind == "all-gather"] == [64]
    assert [each.dtype for each in found if each.kind == "all-gather"] == ["s8"]


@pytest.mark.multi_device
def test_loops_count_as_often_as_they_turn():
    def body(a):
        def inner(carry, _):
            return lax.ppermute(carry, "y", [(0, 1), (1, 2), (2, 3), (3, 0)]), None

        def outer(carry, _):
            carry, _ = lax.scan(inner, carry, None, length=3)
            return carry + lax.pmax(carry, "x"), None

        carry, _ = lax.scan(outer, a, None, length=5)
        carry = lax.while_loop(lambda c: lax.psum(c[0], ("x", "y")) < 10.0, lambda c: c + 1, carry)
        return lax.cond(
            lax.psum(carry[1], ("x", "y")) > 0,
            lambda c: c * lax.psum(c, "x"),
            lambda c: c,
            carry,
        )

    both = PartitionSpec(("x", "y"))
    found = collectives(_compiled(body, jnp.ones((32,)), in_specs=both, out_specs=both))
    times = sorted(
        (each.kind, each.bytes, each.group_size, -1 if each.times is None else each.times)
        for each in found
    )
    assert times == [
        ("all-reduce", 4, 8, -1),  # the condition of a loop of unknown length
        ("all-reduce", 4, 8, 1),
        ("all-reduce", 16, 2, -1),  # a branch
        ("all-reduce", 16, 2, 5),
        ("collective-permute", 16, 4, 15),
    ]
    assert total_bytes(each for each in found if each.times is not None) == {
        "all-reduce": 4 + 5 * 16,
        "collective-permute": 15 * 16,
    }
    with pytest.raises(KernelError, match="unknown number of times"):
        total_bytes(found)


# As printed for a GPU: asynchronous pairs, tuples of operand and result, tiled layouts.
ASYNCHRONOUS = """\
HloModule jit_f, is_scheduled=true, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%scattered (p: bf16[64,4]) -> bf16[8,4] {
  %p = bf16[64,4]{1,0} parameter(0)
  ROOT %rs = bf16[8,4]{1,0} reduce-scatter(%p), replica_groups=[1,8]<=[8], to_apply=%add
}

ENTRY %main.9 (p: f32[16], q: bf16[64,4]) -> f32[128] {
  %p = f32[16]{0} parameter(0)
  %q = bf16[64,4]{1,0} parameter(1)
  %ags = (f32[16]{0}, f32[128]{0:T(128)S(1)}) all-gather-start(%p), replica_groups=[1,8]<=[8]
  %ars.1 = f32[16]{0} all-reduce-start(%p), replica_groups={{0,1},{2,3},{4,5},{6,7}}
  %cps = (f32[16]{0}, f32[16]{0}) collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}
  %rss = ((bf16[64,4]{1,0}), bf16[8,4]{1,0}) async-start(%q), calls=%scattered
  %rsd = bf16[8,4]{1,0} async-done(%rss)
  %cpd = f32[16]{0} collective-permute-done(%cps)
  %ard = f32[16]{0} all-reduce-done(%ars.1)
  ROOT %agd = f32[128]{0:T(128)S(1)} all-gather-done((f32[16]{0}, f32[128]{0:T(128)S(1)}) %ags)
}
"""


def test_an_asynchronous_pair_counts_once_with_the_size_of_its_result():
    assert _seen(collectives(ASYNCHRONOUS)) == [
        ("all-gather", "f32", 512, 8),
        ("all-reduce", "f32", 64, 2),
        ("collective-permute", "f32", 64, 2),
        ("reduce-scatter", "bf16", 64, 8),
    ]


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{}", 8),
        ("{{0,1,2,3,4,5,6,7}}", 8),
        ("{{0,1},{2,3},{4,5},{6,7}}", 2),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("mesh['x'=2,'y'=4] {'y'}", 4),
        ("mesh['axis_0'=1,'axis_1'=8] {'axis_1'}", 8),
        ("mesh['x'=2,'y'=4] {'x','y'}", 8),
        ("mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'y':(1)2}", 2),
    ],
)
def test_groups_are_read_in_every_printed_form(groups, size):
    text = f"""\
HloModule jit_f, num_partitions=8

ENTRY %main (p: pred[3,5]) -> pred[3,5] {{
  %p = pred[3,5]{{1,0}} parameter(0)
  ROOT %r = pred[3,5]{{1,0}} all-reduce(%p), replica_groups={groups}, to_apply=%or
}}

%or (x: pred[], y: pred[]) -> pred[] {{
  ROOT %o = pred[] or(%x, %y)
}}
"""
    assert _seen(collectives(text)) == [("all-reduce", "pred", 15, size)]


def test_what_is_no_compiled_program_is_refused():
    with pytest.raises(KernelError, match="without an ENTRY computation"):
        collectives(jax.jit(jnp.sin).lower(1.0).as_text())


@pytest.mark.multi_device
def test_memory_is_that_of_one_device():
    sharded = NamedSharding(make_mesh(8), PartitionSpec("x"))
    whole = jax.ShapeDtypeStruct((1024, 32), jnp.float32, sharding=sharded)
    added = jax.jit(lambda a: a + 1.0, donate_argnums=0).lower(whole).compile()
    memory = memory_bytes(added)
    assert (memory.argument_bytes, memory.output_bytes, memory.alias_bytes) == (16384,) * 3
    assert memory.total_bytes == 16384 + memory.temporary_bytes

    # Rows of 32 blown up to rows of 1024 and back: 128 x 1024 float32 live in between.
    square = jax.ShapeDtypeStruct((32, 1024), jnp.float32)
    blown = jax.jit(lambda a, b: jnp.sin(a @ b) @ b.T).lower(whole, square).compile()
    memory = memory_bytes(blown)
    assert memory.argument_bytes == 16384 + 4 * 32 * 1024
    assert memory.output_bytes == 16384
    assert memory.alias_bytes == 0
    assert memory.temporary_bytes >= 4 * 128 * 1024
    assert memory.total_bytes == 16384 * 2 + 4 * 32 * 1024 + memory.temporary_bytes
