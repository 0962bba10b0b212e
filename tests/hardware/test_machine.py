"""Machines are pytrees: traced, differentiated and batched in every number."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxcomet.hardware import Machine, load

MACHINES = Path(__file__).parent / "machines"
ALL = [
    "edge",
    "cloud",
    *(str(MACHINES / f"{x}.toml") for x in ("two_level", "four_level", "five_level")),
    str(MACHINES / "several_memories.toml"),
]
UNLIMITED = ["r2", "r2w", "r2v"]


def _sum_of_squares(machine: Machine) -> jax.Array:
    return jnp.asarray(sum(jnp.square(leaf) for leaf in jax.tree.leaves(machine)))


@pytest.mark.parametrize("name", [*ALL, *UNLIMITED], ids=lambda name: Path(name).stem)
def test_all_leaves_are_python_floats(name: str):
    leaves = jax.tree.leaves(load(name))
    assert {type(leaf) for leaf in leaves} == {float}


def test_the_leaves_are_the_numbers_of_the_file():
    # 119 entries of the file; 1 + 12 + 8 switches of memories and networks and 3 kinds of engines
    # are static, 5 access widths are divided out, and the outermost level has a mesh of 1 x 1.
    static = 1 + 4 * 3 + 4 * 2 + 3
    assert len(jax.tree.leaves(load("edge"))) == 119 - static - 5 + 2


@pytest.mark.parametrize("name", ALL, ids=lambda name: Path(name).stem)
def test_a_machine_is_an_argument_of_jit_and_compiles_once(name: str):
    calls = []

    @jax.jit
    def total(machine: Machine) -> jax.Array:
        calls.append(machine.name)
        return _sum_of_squares(machine)

    machine = load(name)
    twice = jax.tree.map(lambda leaf: 2.0 * leaf, machine)
    assert float(total(twice)) == pytest.approx(4.0 * float(total(machine)), rel=1e-6)
    assert calls == [machine.name]


@pytest.mark.parametrize("name", ALL, ids=lambda name: Path(name).stem)
def test_a_gradient_reaches_every_number(name: str):
    machine = load(name)
    gradient = jax.grad(_sum_of_squares)(machine)
    assert jax.tree.structure(gradient) == jax.tree.structure(machine)
    for slope, leaf in zip(jax.tree.leaves(gradient), jax.tree.leaves(machine), strict=True):
        assert float(slope) == pytest.approx(2.0 * leaf, rel=1e-6)


def test_stacked_machines_are_a_batch():
    machines = [load("edge"), dataclasses.replace(load("cloud"), name="edge")]
    batch = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *machines)
    sums = jax.vmap(_sum_of_squares)(batch)
    assert sums.shape == (2,)
    for total, machine in zip(sums, machines, strict=True):
        assert float(total) == pytest.approx(float(_sum_of_squares(machine)), rel=1e-6)


def test_an_unknown_level_lists_the_known_ones():
    with pytest.raises(KeyError, match=r"no level 'l2'; it has \['dram', 'gb', 'core'\]"):
        load("edge").level("l2")


def test_level_index_counts_from_outside():
    assert [load("edge").level_index(name) for name in ("dram", "gb", "core")] == [0, 1, 2]
