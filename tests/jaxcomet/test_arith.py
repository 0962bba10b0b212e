"""The primitives: exact on whole numbers, in both precisions, with the stated derivatives."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomet import arith
from jaxcomet._compat import enable_x64

# every quotient of whole numbers that divides, up to 512, and its neighbours a whole step away
PAIRS = [(n, t) for n in range(1, 513) for t in range(1, n + 1) if n % t == 0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quotients_that_divide_are_not_rounded_up_or_down(dtype: str):
    n, t = np.array(PAIRS, dtype=dtype).T
    with enable_x64(True):
        # both ways in which a model may come by the quotient
        for quotient in (jnp.asarray(n) / t, jnp.asarray(n) * (1 / jnp.asarray(t))):
            assert quotient.dtype == dtype
            assert np.array_equal(arith._ceil(quotient), n // t)
            assert np.array_equal(arith._floor(quotient), n // t)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ceil_and_floor_of_all_small_quotients(dtype: str):
    n, t = (x.ravel() for x in np.meshgrid(np.arange(1, 400), np.arange(1, 130)))
    with enable_x64(True):
        quotient = jnp.asarray(n.astype(dtype)) / t.astype(dtype)
        assert np.array_equal(arith._ceil(quotient), -(-n // t))
        assert np.array_equal(arith._floor(quotient), n // t)


def test_floats_and_arrays_agree():
    values = [n / t for n, t in itertools.product(range(1, 60), range(1, 40))]
    with enable_x64(True):
        for function in (arith.ceil, arith.floor, arith.relu, arith.is_one, arith.at_least_two):
            alone = [float(function(v)) for v in values]
            assert np.array_equal(np.asarray(function(jnp.asarray(values))), alone)


def test_quotients_of_large_numbers_are_exact_in_float64():
    # bytes of whole tensors over a bandwidth: up to 2**46, and one byte more or less
    for exponent, divisor in itertools.product((20, 33, 46), (3, 25, 50, 64, 77, 1000)):
        for extra in (-1, 0, 1):
            n = 2**exponent // divisor * divisor + extra
            assert arith.ceil(n / divisor) == -(-n // divisor)
            assert arith.floor(n / divisor) == n // divisor


def test_derivatives_go_straight_through():
    for function in (arith.ceil, arith.floor):
        assert jax.grad(function)(3.8) == 1.0
        assert jax.grad(function)(4.0) == 1.0
    # of a whole product that is divided: the derivative of the quotient
    assert jax.grad(lambda bandwidth: arith.ceil(100.0 / bandwidth))(8.0) == pytest.approx(
        -100 / 64
    )
    assert jax.grad(arith.relu)(2.0) == 1.0
    assert jax.grad(arith.relu)(-2.0) == 0.0
    assert jax.grad(lambda x: arith.maximum(x, 3.0))(3.0) == 0.5
    assert jax.grad(arith.at_least_two)(5.0) == 0.0
    assert jax.grad(arith.is_one)(5.0) == 0.0


def test_maximum_minimum_product_of_floats_stay_floats():
    assert arith.maximum(1.0, 3.0, 2.0) == 3.0
    assert arith.minimum(4.0, 3.0, 5.0) == 3.0
    assert arith.product([]) == 1.0
    assert arith.product([1.0, 2.0, 1.0, 3.5]) == 7.0
    assert all(isinstance(x, float) for x in (arith.product([2.0, 3.0]), arith.maximum(1.0, 2.0)))
    assert np.array_equal(arith.product([1.0, np.array([2.0, 3.0]), 2.0]), [4.0, 6.0])


def test_ones_and_twos():
    assert [float(arith.is_one(x)) for x in (1.0, 1.5, 2.0, 7.0)] == [1.0, 0.5, 0.0, 0.0]
    assert [float(arith.at_least_two(x)) for x in (1.0, 1.5, 2.0, 7.0)] == [0.0, 0.5, 1.0, 1.0]


def _moves(loops: tuple[tuple[int, bool], ...]) -> int:
    """How often a tile is not the one of the step before; loops innermost first."""
    previous, moves = None, 0
    for indices in itertools.product(*(range(steps) for steps, _ in reversed(loops))):
        tile = tuple(
            i for i, (_, relevant) in zip(indices, reversed(loops), strict=True) if relevant
        )
        moves += tile != previous
        previous = tile
    return moves


def test_reuse_against_loop_nests():
    cases = [
        tuple(zip(steps, relevant, strict=True))
        for depth in (1, 2, 3, 4)
        for steps in itertools.product((1, 2, 3), repeat=depth)
        for relevant in itertools.product((False, True), repeat=depth)
    ]
    for loops in cases:
        floats = [(float(s), r) for s, r in loops]
        steps = math.prod(s for s, _ in loops)
        assert steps / arith.reuse(floats) == _moves(loops), loops
        distinct = math.prod(s for s, r in loops if r)
        assert distinct * arith.refetch(floats) == _moves(loops), loops
    # as arrays, where nothing is known while tracing: all cases of one depth and relevance at once
    for relevant in itertools.product((False, True), repeat=3):
        grid = np.array(list(itertools.product((1.0, 2.0, 3.0), repeat=3))).T
        found = arith.reuse(list(zip([np.asarray(g) for g in grid], relevant, strict=True)))
        for column, factor in zip(grid.T, np.broadcast_to(found, grid.shape[1]), strict=True):
            loops = tuple(zip([int(c) for c in column], relevant, strict=True))
            assert math.prod(s for s, _ in loops) / factor == _moves(loops)


def test_reuse_of_nothing_is_one():
    assert arith.reuse([]) == 1.0
    assert arith.reuse([(1.0, True), (1.0, False)]) == 1.0


def test_select():
    assert arith.select(True, 1.0, 2.0) == 1.0
    assert arith.select(False, 1.0, 2.0) == 2.0
    assert np.array_equal(arith.select(np.array([True, False]), 1.0, 2.0), [1.0, 2.0])
