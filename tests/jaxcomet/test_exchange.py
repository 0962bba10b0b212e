"""Alpha-beta costs: counts of steps and bytes by hand, published values, bounds, transforms."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomet._compat import enable_x64
from jaxcomet.cost import ExchangeError, Fabric, algorithms, bound, exchange

KINDS: tuple[Any, ...] = (
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "permute",
)
TOPOLOGIES: tuple[Any, ...] = ("switch", "fully-connected", "ring", "mesh", "torus")
SIZE = 192.0
COUNTS = (2, 4, 8, 64, 6)

# Steps, bytes over one participant's port and bytes that one participant combines, on a switch,
# for 192 bytes and 2, 4, 8, 64 and 6 participants, counted by hand. 6 folds two of six away
# before, and serves them after, a butterfly between four.
SHARE = (96, 144, 168, 189, 160)  # (p - 1) / p of 192
TWICE = (192, 288, 336, 378, 320)
WHOLE = (192, 384, 576, 1152, 576)  # 192 in each of 1, 2, 3, 6, 3 rounds
ALL = (192, 576, 1344, 12096, 960)  # (p - 1) times 192
NONE = (0, 0, 0, 0, 0)
ONCE = (1, 1, 1, 1, 1)
AROUND = (1, 3, 7, 63, 5)
ROUNDS = (1, 2, 3, 6, 3)
HALVED = (96, 144, 168, 189, 336)  # for 6: 160 to the partner, 96 + 48 between four, 32 back
BY_HAND = {
    ("all_reduce", "ring"): ((2, 6, 14, 126, 10), TWICE, SHARE),
    ("all_reduce", "direct"): ((2, 2, 2, 2, 2), TWICE, SHARE),
    # for 6: 192 to the partner, 2 (96 + 48) between four, 192 back
    ("all_reduce", "halving-doubling"): (
        (2, 4, 6, 12, 6),
        (192, 288, 336, 378, 672),
        (96, 144, 168, 189, 336),
    ),
    ("all_reduce", "recursive-doubling"): (
        (1, 2, 3, 6, 4),
        (192, 384, 576, 1152, 768),
        (192, 384, 576, 1152, 576),
    ),
    ("all_reduce", "tree"): ((2, 4, 6, 12, 6), (384, 768, 1152, 2304, 1152), WHOLE),
    ("all_reduce", "one-shot"): (ONCE, ALL, ALL),
    ("reduce_scatter", "ring"): (AROUND, SHARE, SHARE),
    ("reduce_scatter", "direct"): (ONCE, SHARE, SHARE),
    ("reduce_scatter", "halving-doubling"): ((1, 2, 3, 6, 4), HALVED, HALVED),
    ("all_gather", "ring"): (AROUND, SHARE, NONE),
    ("all_gather", "direct"): (ONCE, SHARE, NONE),
    ("all_gather", "halving-doubling"): ((1, 2, 3, 6, 4), HALVED, NONE),
    ("broadcast", "tree"): (ROUNDS, WHOLE, NONE),
    ("broadcast", "one-shot"): (ONCE, ALL, NONE),
    ("broadcast", "direct"): ((2, 2, 2, 2, 2), TWICE, NONE),
    ("broadcast", "ring"): ((2, 5, 10, 69, 8), TWICE, NONE),
    ("broadcast", "halving-doubling"): ((2, 4, 6, 12, 7), (192, 288, 336, 378, 496), NONE),
    ("reduce", "tree"): (ROUNDS, WHOLE, WHOLE),
    ("reduce", "one-shot"): (ONCE, ALL, ALL),
    ("reduce", "direct"): ((2, 2, 2, 2, 2), TWICE, SHARE),
    ("reduce", "ring"): ((2, 5, 10, 69, 8), TWICE, SHARE),
    ("reduce", "halving-doubling"): ((2, 4, 6, 12, 7), (192, 288, 336, 378, 496), HALVED),
    ("gather", "tree"): (ROUNDS, SHARE, NONE),
    ("gather", "direct"): (ONCE, SHARE, NONE),
    ("gather", "ring"): (AROUND, SHARE, NONE),
    ("scatter", "tree"): (ROUNDS, SHARE, NONE),
    ("scatter", "direct"): (ONCE, SHARE, NONE),
    ("scatter", "ring"): (AROUND, SHARE, NONE),
    ("all_to_all", "direct"): (ONCE, SHARE, NONE),
    ("all_to_all", "pairwise"): (AROUND, SHARE, NONE),
    ("permute", "direct"): (ONCE, WHOLE[:1] * 5, NONE),
}


def _fabric(topology: Any, x: Any, y: Any = 1.0, **numbers: Any) -> Fabric:
    given = {"step_latency": 10.0, "bandwidth": 4.0, "time_per_combined_byte": 0.5}
    return Fabric(topology=topology, x=x, y=y, **{**given, **numbers})


# -- by hand -------------------------------------------------------------------------------------


def test_every_algorithm_of_a_switch_is_counted_by_hand():
    there = {(kind, name) for kind in KINDS for name in algorithms(kind, "switch")}
    assert there == set(BY_HAND)


@pytest.mark.parametrize("case", BY_HAND, ids="-".join)
def test_steps_and_bytes_on_a_switch(case: tuple[Any, str]):
    for column, p in enumerate(COUNTS):
        steps, sent, combined = (row[column] for row in BY_HAND[case])
        e = exchange(case[0], SIZE, _fabric("switch", float(p)), algorithm=case[1])
        assert e.algorithm == case[1]
        assert e.steps == pytest.approx(steps, rel=1e-14)
        assert e.latency_time == pytest.approx(10 * steps, rel=1e-14)
        assert e.bandwidth_time == pytest.approx(sent / 4, rel=1e-14)
        assert e.arithmetic_time == pytest.approx(combined / 2, rel=1e-14)
        assert e.time == pytest.approx(10 * steps + sent / 4 + combined / 2, rel=1e-14)


@pytest.mark.parametrize(
    ("kind", "name", "sent"),
    [
        # bytes of all participants together, for 2, 4, 8, 64 and 6 of them
        ("all_reduce", "ring", (384, 1152, 2688, 24192, 1920)),  # 2 (p - 1) 192
        ("all_reduce", "direct", (384, 1152, 2688, 24192, 1920)),
        ("all_reduce", "halving-doubling", (384, 1152, 2688, 24192, 1920)),
        ("all_reduce", "tree", (384, 1152, 2688, 24192, 1920)),
        ("all_reduce", "one-shot", (384, 2304, 10752, 774144, 5760)),  # p (p - 1) 192
        ("all_reduce", "recursive-doubling", (384, 1536, 4608, 73728, 2304)),  # p log2(p) 192
        ("reduce_scatter", "ring", ALL),
        ("reduce_scatter", "halving-doubling", ALL),
        ("all_gather", "halving-doubling", ALL),
        ("broadcast", "tree", ALL),
        ("reduce", "one-shot", ALL),
        ("all_to_all", "pairwise", ALL),
        # a block of 192 / p goes as many steps as its position has binary ones
        ("gather", "tree", (96, 192, 288, 576, 224)),
        ("scatter", "direct", SHARE),
        ("permute", "direct", (384, 768, 1536, 12288, 1152)),
    ],
)
def test_bytes_of_all_participants_together(kind: Any, name: str, sent: tuple[int, ...]):
    for p, expected in zip(COUNTS, sent, strict=True):
        e = exchange(kind, SIZE, _fabric("switch", float(p)), algorithm=name)
        assert e.sent_bytes == pytest.approx(expected, rel=1e-14)
        assert e.sent_bytes_per_participant == pytest.approx(expected / p, rel=1e-14)


@pytest.mark.parametrize(
    ("kind", "name", "fabric", "steps", "hops", "link_bytes"),
    [
        # fully connected, 8: each of 7 links carries its own block of 24 bytes
        ("all_reduce", "direct", ("fully-connected", 8, 1), 2, 2, 48),
        ("all_reduce", "one-shot", ("fully-connected", 8, 1), 1, 1, 192),
        ("all_reduce", "ring", ("fully-connected", 8, 1), 14, 14, 336),
        ("all_to_all", "pairwise", ("fully-connected", 8, 1), 7, 7, 168),
        ("gather", "direct", ("fully-connected", 8, 1), 1, 1, 24),
        ("broadcast", "direct", ("fully-connected", 8, 1), 2, 2, 48),
        # a ring of 8: all pairs put 8 messages on each link; partners 1, 2, 4 away put 1, 2, 2
        ("all_gather", "ring", ("ring", 8, 1), 7, 7, 168),
        ("all_gather", "bidirectional-ring", ("ring", 8, 1), 7, 7, 84),
        ("all_gather", "direct", ("ring", 8, 1), 1, 4, 192),
        ("reduce_scatter", "halving-doubling", ("ring", 8, 1), 3, 7, 96 + 96 + 48),
        ("all_reduce", "recursive-doubling", ("ring", 8, 1), 3, 7, 5 * 192),
        ("broadcast", "tree", ("ring", 8, 1), 3, 7, 576),
        ("gather", "direct", ("ring", 8, 1), 1, 4, 4 * 24),
        ("all_to_all", "direct", ("ring", 3, 1), 1, 1, 64),
        ("permute", "direct", ("ring", 8, 1), 1, 1, 192),
        # two in a ring share one link: both directions of a ring lead over it
        ("all_reduce", "bidirectional-ring", ("ring", 2, 1), 2, 2, 192),
        ("all_to_all", "direct", ("ring", 2, 1), 1, 1, 96),
        # a mesh of 4 x 4: 16 messages over a middle link, a block is 12 bytes
        ("all_to_all", "direct", ("mesh", 4, 4), 1, 6, 192),
        ("all_reduce", "ring", ("mesh", 4, 4), 30, 30, 360),
        ("all_reduce", "bidirectional-ring", ("mesh", 4, 4), 30, 30, 180),
        ("all_reduce", "hierarchical", ("mesh", 4, 4), 12, 12, 6 * 48 + 6 * 12),
        # along x: 96 next door, 48 two away with two on the middle link; then the same with 48
        ("reduce_scatter", "halving-doubling", ("mesh", 4, 4), 4, 6, 96 + 96 + 24 + 24),
        ("all_reduce", "tree", ("mesh", 4, 4), 8, 12, 8 * 192),
        ("gather", "tree", ("mesh", 4, 4), 4, 6, 180),
        ("gather", "direct", ("mesh", 4, 4), 1, 6, 12 * 12),  # 4 columns of 3 over one link
        ("all_to_all", "hierarchical", ("mesh", 4, 4), 2, 6, 2 * 4 * 48),
        ("permute", "direct", ("mesh", 4, 4), 1, 1, 192),
        # no closed walk through 3 x 3; a line has neighbours' neighbours
        ("all_gather", "ring", ("mesh", 3, 3), 8, 16, 8 * 192 / 9),
        ("permute", "direct", ("mesh", 3, 3), 1, 2, 192),
        ("all_gather", "ring", ("mesh", 5, 1), 4, 4, 4 * 38.4),
        ("all_gather", "direct", ("mesh", 5, 1), 1, 4, 6 * 38.4),
        ("permute", "direct", ("mesh", 5, 1), 1, 2, 192),
        ("permute", "direct", ("mesh", 2, 1), 1, 1, 192),
        # a fold along each side of 3 x 2; halves of 192 and of 96, a third of 192 left to return
        ("all_gather", "halving-doubling", ("mesh", 3, 2), 4, 5, 128 + 96 + 64 + 48),
        # a torus of 4 x 4: half of the mesh's load
        ("all_to_all", "direct", ("torus", 4, 4), 1, 4, 96),
        ("all_reduce", "hierarchical", ("torus", 4, 4), 12, 12, 360),
        ("all_reduce", "hierarchical", ("torus", 4, 2), 8, 8, 6 * 48 + 2 * 24),
        ("broadcast", "tree", ("torus", 4, 4), 4, 6, 4 * 192),
    ],
)
def test_hops_and_the_busiest_link(
    kind: Any, name: str, fabric: tuple[Any, int, int], steps: int, hops: int, link_bytes: float
):
    topology, x, y = fabric
    e = exchange(kind, SIZE, _fabric(topology, float(x), float(y)), algorithm=name)
    assert e.steps == pytest.approx(steps, rel=1e-14)
    assert e.hops == pytest.approx(hops, rel=1e-14)
    assert e.link_bytes == pytest.approx(link_bytes, rel=1e-14)
    assert e.latency_time == pytest.approx(10 * hops, rel=1e-14)
    assert e.bandwidth_time == pytest.approx(link_bytes / 4, rel=1e-14)


def _walk_all_pairs(topology: str, x: int, y: int) -> tuple[float, float]:
    """(messages on the busiest link, hops of all) when each sends to each, walked link by link."""
    load: dict[tuple, float] = {}
    total = 0.0

    def moves(a: int, b: int, n: int) -> list[tuple[int, int, float]]:
        """(hops, direction, share) of the ways from a to b along a side of n."""
        if topology == "mesh":
            return [(abs(b - a), 1 if b > a else -1, 1.0)]
        ahead = (b - a) % n
        if 2 * ahead == n:
            return [(ahead, 1, 0.5), (ahead, -1, 0.5)] if n > 2 else [(1, 1 if b > a else -1, 1.0)]
        return [(ahead, 1, 1.0)] if 2 * ahead < n else [(n - ahead, -1, 1.0)]

    everyone = list(itertools.product(range(x), range(y)))
    for (ax, ay), (bx, by) in itertools.permutations(everyone, 2):
        for side, a, b, n, fixed in (("x", ax, bx, x, ay), ("y", ay, by, y, bx)):
            if a == b:
                continue
            for hops, direction, share in moves(a, b, n):
                total += hops * share
                for hop in range(hops):
                    link = (side, fixed, (a + direction * hop) % n, direction)
                    load[link] = load.get(link, 0.0) + share
    return max(load.values(), default=0.0), total


@pytest.mark.parametrize("topology", ["mesh", "torus"])
@pytest.mark.parametrize("shape", [(2, 1), (2, 2), (5, 1), (3, 3), (4, 3), (6, 4), (5, 2)])
def test_contention_of_all_pairs_is_what_a_walk_over_all_links_finds(
    topology: str, shape: tuple[int, int]
):
    x, y = shape
    load, hops = _walk_all_pairs(topology, x, y)
    e = exchange(
        "all_to_all", float(x * y), _fabric(topology, float(x), float(y)), algorithm="direct"
    )
    assert e.link_bytes == pytest.approx(load, rel=1e-14)  # messages of one byte
    assert e.hop_bytes == pytest.approx(hops, rel=1e-14)


def test_levels_with_links_of_their_own():
    """8 fully connected, 4 such groups on a switch: 192 bytes."""
    inner = _fabric("fully-connected", 8.0, step_latency=1.0, bandwidth=8.0)
    outer = _fabric("switch", 4.0, step_latency=20.0, bandwidth=2.0)
    e = exchange("all_reduce", SIZE, (inner, outer))
    assert e.algorithm == "hierarchical"
    assert e.participants == 32.0
    # 24 bytes each way inside, 2 x 3/4 of the 24 that each then holds across
    assert e.time == pytest.approx(2 * (1 + 24 / 8) + 2 * 20 + 36 / 2 + (168 + 18) / 2, rel=1e-14)
    assert e.sent_bytes == pytest.approx(2 * 31 * SIZE, rel=1e-14)
    assert e.steps == 4.0
    # 3 rounds of a tree inside, 2 across
    e = exchange("broadcast", SIZE, (inner, outer), algorithm="hierarchical")
    assert e.time == pytest.approx(3 * (1 + 24) + 2 * (20 + 96), rel=1e-14)
    assert e.sent_bytes == pytest.approx(31 * SIZE, rel=1e-14)
    # blocks of 6 bytes: 7 of them inside, then 3 x 48 across
    e = exchange("gather", SIZE, (inner, outer))
    assert e.time == pytest.approx(3 * 1 + 42 / 8 + 2 * 20 + 144 / 2, rel=1e-14)
    e = exchange("all_to_all", SIZE, (inner, outer))
    assert e.time == pytest.approx(1 + 24 / 8 + 20 + 144 / 2, rel=1e-14)
    e = exchange("all_gather", SIZE, (inner, outer))
    assert e.time == pytest.approx(1 + 24 / 8 + 20 + 18 / 2, rel=1e-14)


# -- what users asked for, and published values --------------------------------------------------


def test_ring_against_direct_all_reduce():
    """T08: 8 devices on one switch, 50 GB/s per port and direction, 10 ns a step; ns, bytes/ns."""
    switch = Fabric(topology="switch", x=8.0, step_latency=10.0, bandwidth=50.0)

    def ns(size: float, name: str) -> float:
        return float(exchange("all_reduce", size, switch, algorithm=name).time)

    large, small = 100e6, 8e3
    assert ns(large, "ring") == pytest.approx(3.50014e6, rel=1e-9)
    assert ns(large, "direct") == pytest.approx(3.50002e6, rel=1e-9)
    assert ns(large, "ring") == pytest.approx(ns(large, "direct"), rel=1e-4)
    assert ns(large, "one-shot") == pytest.approx(14.00001e6, rel=1e-9)
    assert ns(small, "ring") == pytest.approx(420.0, rel=1e-12)
    assert ns(small, "direct") == pytest.approx(300.0, rel=1e-12)
    assert ns(small, "one-shot") == pytest.approx(1130.0, rel=1e-12)
    for size in (large, small):
        best = exchange("all_reduce", size, switch)
        assert best.algorithm == "direct"
        assert float(best.time) == ns(size, "direct")


@pytest.mark.parametrize(("element_bytes", "microseconds"), [(2, 293.6), (4, 587.2)])
def test_bytes_not_elements(element_bytes: int, microseconds: float):
    """T09: all-gather of 4096 x 4096 over 8 devices in a ring, 100 GB/s one way."""
    ring = Fabric(topology="ring", x=8.0, bandwidth=100e9)
    size = 4096.0 * 4096.0 * element_bytes
    assert size == 33_554_432 * element_bytes / 2
    seconds = exchange("all_gather", size, ring, algorithm="ring").time
    assert 1e6 * float(seconds) == pytest.approx(microseconds, rel=1e-4)
    half = exchange("all_gather", 33_554_432.0, ring, algorithm="ring").time
    assert float(seconds) == float(half) * (element_bytes / 2)


MIB = 2.0**20
ASTRA = 50 * 2**30 / 1e9
"""Bytes per ns of 50 GB/s in ASTRA-sim."""


def _astra(topology: Any, x: int, y: int = 1, *, hop_ns: float = 500.0) -> Fabric:
    return Fabric(
        topology=topology,
        x=float(x),
        y=float(y),
        step_latency=hop_ns,
        bandwidth=ASTRA,
        endpoint_latency=1.0,
        rounding="down",
    )


@pytest.mark.parametrize(
    ("name", "fabric", "size", "nanoseconds"),
    [
        # ASTRA-sim ee852f4, one chunk, endpoint delay 1 ns, local memory free
        ("ring", _astra("ring", 4), MIB, 32_299),
        ("ring", _astra("ring", 4), 64 * MIB, 1_878_007),
        ("ring", _astra("ring", 8), MIB, 41_189),
        ("ring", _astra("ring", 8), 64 * MIB, 2_194_515),
        ("ring", _astra("ring", 4), 1e6, 30_943),
        ("ring", _astra("ring", 4), 64e6, 1_791_145),
        ("ring", _astra("ring", 8), 1e6, 39_607),
        ("ring", _astra("ring", 8), 64e6, 2_093_169),
        # two hops through its switch
        ("halving-doubling", _astra("switch", 4, hop_ns=1000.0), MIB, 33_299),
        ("halving-doubling", _astra("switch", 8, hop_ns=1000.0), MIB, 40_183),
        ("halving-doubling", _astra("switch", 4, hop_ns=1000.0), 64 * MIB, 1_879_005),
        ("halving-doubling", _astra("switch", 8, hop_ns=1000.0), 64 * MIB, 2_193_507),
        ("tree", _astra("switch", 4, hop_ns=1000.0), MIB, 82_129),  # its double binary tree
        ("tree", _astra("switch", 8, hop_ns=1000.0), MIB, 123_193),
        ("tree", _astra("switch", 4, hop_ns=1000.0), 64 * MIB, 5_004_005),
        ("tree", _astra("switch", 8, hop_ns=1000.0), 64 * MIB, 7_506_007),
        ("ring", _astra("switch", 4, hop_ns=1000.0), MIB, 35_299),
        ("ring", _astra("switch", 8, hop_ns=1000.0), MIB, 48_189),
        ("ring", _astra("switch", 4, hop_ns=1000.0), 64 * MIB, 1_881_007),
        ("ring", _astra("switch", 8, hop_ns=1000.0), 64 * MIB, 2_201_515),
        ("direct", _astra("fully-connected", 4), MIB, 10_767),
        ("direct", _astra("fully-connected", 8), MIB, 5_885),
        ("direct", _astra("fully-connected", 4), 64 * MIB, 626_003),
        ("direct", _astra("fully-connected", 8), 64 * MIB, 313_503),
        # "localBWAware"
        ("hierarchical", _astra("torus", 4, 2), MIB, 38_185),
        ("hierarchical", _astra("torus", 4, 2), 64 * MIB, 2_191_511),
        ("hierarchical", _astra("torus", 4, 4), MIB, 42_627),
        ("hierarchical", _astra("torus", 4, 4), 64 * MIB, 2_349_765),
    ],
)
def test_all_reduces_of_astra_sim(name: str, fabric: Fabric, size: float, nanoseconds: int):
    assert exchange("all_reduce", size, fabric, algorithm=name).time == nanoseconds


@pytest.mark.parametrize(
    ("sides", "size", "nanoseconds"),
    [
        ((4, 2), MIB, 52_832),
        ((4, 2), 64 * MIB, 3_129_010),
        ((4, 4), MIB, 64_598),
        ((4, 4), 64 * MIB, 3_756_014),
    ],
)
def test_two_full_all_reduces_in_turn_are_the_baseline_of_astra_sim(
    sides: tuple[int, int], size: float, nanoseconds: int
):
    rings = (exchange("all_reduce", size, _astra("ring", n), algorithm="ring") for n in sides)
    assert sum(float(e.time) for e in rings) == nanoseconds


@pytest.mark.parametrize(
    ("count", "size", "nanoseconds"),
    [
        (4, MIB, 34_457.3),
        (4, 64 * MIB, 2_016_265.9),
        (8, MIB, 43_700.2),
        (8, 64 * MIB, 2_355_810.2),
        (4, 1e6, 33_000.0),
        (4, 64e6, 1_923_000.0),
        (8, 1e6, 42_000.0),
        (8, 64e6, 2_247_000.0),
    ],
)
def test_ring_all_reduces_of_llmcompass(count: int, size: float, nanoseconds: float):
    """Its commit 2e015fd without headers: 500 ns and 50e9 B/s."""
    ring = Fabric(topology="ring", x=float(count), step_latency=500.0, bandwidth=50.0)
    time = float(exchange("all_reduce", size, ring, algorithm="ring").time)
    assert round(time, 1) == nanoseconds


# -- properties ----------------------------------------------------------------------------------


def _random(topology: Any, rows: int, seed: int) -> tuple[np.ndarray, Fabric]:
    rng = np.random.default_rng(seed)

    def some(low: float, high: float) -> np.ndarray:
        return np.exp(rng.uniform(math.log(low), math.log(high), rows))

    flat = topology not in ("mesh", "torus")
    fabric = Fabric(
        topology=topology,
        x=rng.integers(1, 300 if flat else 20, rows).astype(float),
        y=np.ones(rows) if flat else rng.integers(1, 20, rows).astype(float),
        step_latency=some(1e-3, 1e3),
        bandwidth=some(1e-3, 1e3),
        endpoint_latency=rng.choice([0.0, 1.0], rows),
        time_per_combined_byte=some(1e-6, 1e-2),
    )
    return some(1.0, 1e9), fabric


def _cases() -> list[tuple[Any, Any]]:
    return list(itertools.product(KINDS, TOPOLOGIES))


@pytest.mark.parametrize(("kind", "topology"), _cases())
def test_no_algorithm_is_below_the_bound_and_auto_is_the_least(kind: Any, topology: Any):
    size, fabric = _random(topology, 200, seed=5)
    alone = fabric.participants == 1.0
    assert np.any(alone) or topology not in ("mesh", "torus")
    with enable_x64(True):
        least = np.asarray(bound(kind, size, fabric))
        names = algorithms(kind, topology)
        times = []
        for name in names:
            e = exchange(kind, size, fabric, algorithm=name)
            times.append(np.asarray(e.time))
            assert np.all(times[-1] >= least * (1 - 1e-12)), name
            assert np.all(np.asarray(e.hops) >= np.asarray(e.steps)), name
            assert np.all(np.asarray(e.hop_bytes) >= np.asarray(e.sent_bytes) * (1 - 1e-12)), name
            assert np.all(times[-1][alone] == 0), name
            assert np.all(times[-1][~alone] > 0), name
        best = exchange(kind, size, fabric)
    np.testing.assert_array_equal(best.time, np.min(times, axis=0))
    np.testing.assert_array_equal(best.choice, np.argmin(times, axis=0))
    assert best.algorithm_at(7) == names[int(np.argmin(times, axis=0)[7])]


@pytest.mark.parametrize(("kind", "topology"), _cases())
def test_one_participant_has_nothing_to_do(kind: Any, topology: Any):
    for name in (*algorithms(kind, topology), "auto"):
        e = exchange(kind, 1e6, _fabric(topology, 1.0, endpoint_latency=3.0), algorithm=name)
        assert (e.time, e.steps, e.sent_bytes, e.hop_bytes, e.combined_bytes) == (0, 0, 0, 0, 0)
    assert bound(kind, 1e6, _fabric(topology, 1.0, endpoint_latency=3.0)) == 0.0


@pytest.mark.parametrize("rounding", ["none", "down"])
@pytest.mark.parametrize(("kind", "topology"), _cases())
def test_floats_and_arrays_agree(kind: Any, topology: Any, rounding: str):
    size, fabric = _random(topology, 12, seed=6)
    numbers = {**vars(fabric), "rounding": rounding}
    names = ("x", "y", "step_latency", "bandwidth", "time_per_combined_byte", "endpoint_latency")
    with enable_x64(True):
        batch = exchange(kind, size, Fabric(**numbers))
    for row in range(12):
        one = Fabric(**{**numbers, **{n: float(numbers[n][row]) for n in names}})
        single = exchange(kind, float(size[row]), one)
        assert all(isinstance(leaf, float) for leaf in jax.tree.leaves(single))
        assert single.algorithm == batch.algorithm_at(row)
        for mine, its in zip(jax.tree.leaves(single), jax.tree.leaves(batch), strict=True):
            found = np.broadcast_to(np.asarray(its), (12,))[row]
            assert float(found) == pytest.approx(mine, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("kind", "topology"), _cases())
def test_gradients_are_finite_also_at_one_participant(kind: Any, topology: Any):
    sided = topology in ("mesh", "torus")

    def time(size: Any, fabric: Fabric, name: str) -> Any:
        return jnp.sum(exchange(kind, size, fabric, algorithm=name).time)

    x, y = jnp.array([1.0, 2.0, 3.0, 8.0]), jnp.array([1.0, 1.0, 3.0, 2.0])
    fabric = _fabric(topology, x, y if sided else 1.0)
    for name in algorithms(kind, topology):
        for leaf in jax.tree.leaves(jax.grad(time, argnums=(0, 1))(100.0, fabric, name)):
            assert np.all(np.isfinite(leaf)), name


def test_gradients_are_those_of_the_closed_form():
    """Ring all-reduce: 2 (p - 1) (a + S / p / B), S = 192, p = 8, a = 10, B = 4."""

    def time(size: Any, fabric: Fabric) -> Any:
        return exchange("all_reduce", size, fabric, algorithm="ring").time

    fabric = Fabric(topology="ring", x=8.0, step_latency=10.0, bandwidth=4.0)
    by_size, by_fabric = jax.grad(time, argnums=(0, 1))(192.0, fabric)
    assert by_size == pytest.approx(14 / 8 / 4)
    assert by_fabric.step_latency == pytest.approx(14)
    assert by_fabric.bandwidth == pytest.approx(-14 * 24 / 16)
    assert by_fabric.x == pytest.approx(20 + 2 * 192 / 4 / 64)


def test_jit_and_vmap_give_the_same_and_compile_once():
    compiled = []

    @jax.jit
    def times(size: Any, fabric: Fabric) -> Any:
        compiled.append(1)
        return jax.vmap(lambda s, f: exchange("all_reduce", s, f).time)(size, fabric)

    size, fabric = _random("switch", 30, seed=8)
    with enable_x64(True):
        np.testing.assert_allclose(
            times(size, fabric), exchange("all_reduce", size, fabric).time, rtol=1e-12
        )
        other = _random("switch", 30, seed=9)
        np.testing.assert_allclose(times(*other), exchange("all_reduce", *other).time, rtol=1e-12)
    assert len(compiled) == 1


def test_arrays_broadcast():
    sizes = np.array([[8e3], [100e6]])
    counts = np.array([2.0, 8.0, 64.0])
    switch = Fabric(topology="switch", x=counts, step_latency=10.0, bandwidth=50.0)
    with enable_x64(True):
        e = exchange("all_reduce", sizes, switch, algorithm="halving-doubling")
    # 2 log2(p) steps of 10 ns, 2 (p - 1) / p of the bytes at 50 per ns
    expected = [[180, 340, 435], [2_000_020, 3_500_060, 3_937_620]]
    np.testing.assert_allclose(e.time, expected, rtol=1e-12)


def test_faster_links_and_fewer_bytes_are_never_slower():
    for kind, topology in itertools.product(("all_reduce", "broadcast"), TOPOLOGIES):
        size, fabric = _random(topology, 50, seed=10)
        numbers = dict(vars(fabric))
        with enable_x64(True):
            base = np.asarray(exchange(kind, size, fabric).time)
            faster = Fabric(**{**numbers, "bandwidth": 2.0 * numbers["bandwidth"]})
            assert np.all(np.asarray(exchange(kind, size, faster).time) <= base * (1 + 1e-12))
            assert np.all(np.asarray(exchange(kind, 0.5 * size, fabric).time) <= base * (1 + 1e-12))


# -- errors --------------------------------------------------------------------------------------


def test_what_is_not_there_is_refused_in_one_line():
    switch, mesh = _fabric("switch", 4.0), _fabric("mesh", 4.0)
    with pytest.raises(ExchangeError, match="got 'tree' for all_to_all on topology mesh; expected"):
        exchange("all_to_all", 1.0, mesh, algorithm="tree")
    with pytest.raises(ExchangeError, match="direct, pairwise"):
        exchange("all_to_all", 1.0, switch, algorithm="ring")
    with pytest.raises(ExchangeError, match="bidirectional-ring"):
        exchange("all_reduce", 1.0, switch, algorithm="bidirectional-ring")
    with pytest.raises(ExchangeError, match="one of hierarchical"):
        exchange("all_reduce", 1.0, (mesh, switch), algorithm="ring")
    with pytest.raises(ExchangeError, match="got several for permute"):
        exchange("permute", 1.0, (mesh, switch))
    with pytest.raises(ExchangeError, match="got 'allreduce'; expected one of broadcast, reduce"):
        algorithms("allreduce", "ring")
    with pytest.raises(ExchangeError, match="got 'cube'; expected one of switch"):
        algorithms("all_reduce", "cube")
