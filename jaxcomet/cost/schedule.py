"""Schedules: what each algorithm of a collective sends, step by step (docs/collectives.md, 3).

The one idea: an algorithm is a sum of steps; a step with messages of m bytes over h hops, l of them
on its busiest link, takes ``h alpha + l m / B`` and then combines what arrived. All participants
act in each step, so that the sum over steps is the time of the collective.

Left out: splitting a message into chunks that follow each other (pipelined trees).
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass

from jaxcomet.arith import Number, floor, minimum, on_host, per, relu
from jaxcomet.cost.fabric import (
    Fabric,
    Side,
    all_pairs_hops,
    all_pairs_load,
    beyond,
    diameter,
    neighbour_hops,
    power_of_two,
    ring_hops,
    root_hops,
    root_load,
    rounds_of,
    sides,
    two_ways,
    whole_rounds,
)

MAX_ROUNDS = 24
"""Rounds that arrays of participants may need at most: up to 2**24 of them along one side."""


@register_dataclass
@dataclass(frozen=True)
class Work:
    """What a sequence of steps takes; times in the fabric's unit.

    Attributes:
      steps: number of steps.
      hops: hops of the longest messages, one step after the other.
      link_bytes: bytes over the busiest link or port, one step after the other.
      latency: time of the hops, and at the endpoints.
      bandwidth: time of the bytes.
      arithmetic: time to combine.
      sent_bytes: bytes that all participants send together.
      hop_bytes: the same, each byte times the hops that it goes.
      combined_bytes: bytes of results that all participants combine together.
    """

    steps: Number = 0.0
    hops: Number = 0.0
    link_bytes: Number = 0.0
    latency: Number = 0.0
    bandwidth: Number = 0.0
    arithmetic: Number = 0.0
    sent_bytes: Number = 0.0
    hop_bytes: Number = 0.0
    combined_bytes: Number = 0.0

    def __add__(self, other: "Work") -> "Work":
        mine = (getattr(self, f.name) + getattr(other, f.name) for f in fields(Work))
        return Work(*mine)

    def shared_by(self, groups: Number) -> "Work":
        """The same work in several groups side by side: what is counted over all grows."""
        return dataclasses.replace(
            self,
            sent_bytes=self.sent_bytes * groups,
            hop_bytes=self.hop_bytes * groups,
            combined_bytes=self.combined_bytes * groups,
        )


def _steps(
    fabric: Fabric,
    count: Number,
    message: Number,
    *,
    sent: Number,
    hops: Number = 1.0,
    load: Number = 1.0,
    hop_bytes: Number | None = None,
    combined: Number = 0.0,
    all_combined: Number = 0.0,
) -> Work:
    """`count` equal steps.

    Args:
      fabric: its latency, bandwidth and rounding count.
      count: number of steps; 0 makes everything 0.
      message: bytes of the largest message of a step.
      sent: bytes of all messages of a step.
      hops: hops of the longest one.
      load: messages on the busiest link.
      hop_bytes: bytes times hops of all messages of a step; None: as if all went `hops`.
      combined: bytes that the busiest participant combines in a step.
      all_combined: bytes that all combine in a step.
    """
    latency = hops * fabric.step_latency
    link = load * message
    bandwidth = per(link, fabric.bandwidth)
    if fabric.rounding == "down":
        bandwidth = floor(latency + bandwidth) - latency
    return Work(
        steps=count,
        hops=count * hops,
        link_bytes=count * link,
        latency=count * latency,
        bandwidth=count * bandwidth,
        arithmetic=count * combined * fabric.time_per_combined_byte,
        sent_bytes=count * sent,
        hop_bytes=count * (sent * hops if hop_bytes is None else hop_bytes),
        combined_bytes=count * all_combined,
    )


def phase(fabric: Fabric, work: Work) -> Work:
    """Work with what is spent at the endpoints: before the first step and after every step."""
    starts = beyond(fabric.participants, 1.0)
    ends = (work.steps + starts) * fabric.endpoint_latency
    return dataclasses.replace(work, latency=work.latency + ends)


def _rounds(fabric: Fabric, size: Number, number: Number, body: Callable[[Number], Work]) -> Work:
    """Sum of `body` over the distances 1, 2, 4, ... of a number of rounds.

    Gradient in the number of rounds: the mean of the last round and of the one that would follow.
    """
    if isinstance(number, float):
        whole = max(0, int(number))
        rounds = sum((body(2.0**k) for k in range(whole)), start=Work())
        part = number - whole  # of a round; 0 unless at a temperature
        if part <= 0.0:
            return rounds
        return rounds + jax.tree.map(lambda x: part * x, body(2.0**whole))
    rank = max(np.ndim(leaf) for leaf in (size, *jax.tree.leaves(fabric)))
    shape = (MAX_ROUNDS, *(1,) * rank)
    indices = np.arange(MAX_ROUNDS, dtype=jnp.result_type(float)).reshape(shape)
    if on_host(number, size, *jax.tree.leaves(fabric)):
        indices = indices.astype(np.float64)
    taken = minimum(relu(number - indices), 1.0)
    work = body(np.power(2.0, indices).astype(indices.dtype))

    def total(value: Number) -> Number:
        return (taken * value).sum(axis=0)  # pyright: ignore[reportAttributeAccessIssue]

    return jax.tree.map(total, work)


# -- rings and direct exchanges ------------------------------------------------------------------


def ring(fabric: Fabric, size: Number, *, combine: bool) -> Work:
    """All-gather, or reduce-scatter where it combines: a block to the next one in each step."""
    p = fabric.participants
    block = size / p
    return _steps(
        fabric,
        p - 1.0,
        block,
        hops=ring_hops(fabric),
        sent=size,
        combined=block if combine else 0.0,
        all_combined=size if combine else 0.0,
    )


def two_rings(fabric: Fabric, size: Number, *, combine: bool) -> Work:
    """The same with half of each block in each direction."""
    p = fabric.participants
    block = size / p
    return _steps(
        fabric,
        p - 1.0,
        0.5 * block,
        hops=ring_hops(fabric),
        load=2.0 - two_ways(fabric),
        sent=size,
        combined=block if combine else 0.0,
        all_combined=size if combine else 0.0,
    )


def all_pairs(fabric: Fabric, message: Number, *, combine: bool = False) -> Work:
    """One step in which each sends a message to each other one."""
    p = fabric.participants
    each = (p - 1.0) * message
    return _steps(
        fabric,
        beyond(p, 1.0),
        message,
        hops=diameter(fabric),
        load=all_pairs_load(fabric),
        sent=p * each,
        hop_bytes=all_pairs_hops(fabric) * message,
        combined=each if combine else 0.0,
        all_combined=p * each if combine else 0.0,
    )


def one_root(fabric: Fabric, message: Number, *, combine: bool = False) -> Work:
    """One step in which each sends a message to the root, or the root one to each."""
    p = fabric.participants
    each = (p - 1.0) * message
    return _steps(
        fabric,
        beyond(p, 1.0),
        message,
        hops=diameter(fabric),
        load=root_load(fabric),
        sent=each,
        hop_bytes=root_hops(fabric) * message,
        combined=each if combine else 0.0,
        all_combined=each if combine else 0.0,
    )


def pairwise(fabric: Fabric, size: Number) -> Work:
    """All-to-all in p - 1 steps, with another partner in each."""
    p = fabric.participants
    return _steps(fabric, p - 1.0, size / p, sent=size)


def chain(fabric: Fabric, size: Number) -> Work:
    """Gather or scatter along a path through all: the blocks pass one after the other."""
    p = fabric.participants
    return _steps(fabric, p - 1.0, size / p, sent=0.5 * size)


def to_neighbour(fabric: Fabric, size: Number) -> Work:
    """One step in which each sends what it holds to the next one."""
    p = fabric.participants
    return _steps(fabric, beyond(p, 1.0), size, hops=neighbour_hops(fabric), sent=p * size)


# -- trees ---------------------------------------------------------------------------------------


def tree(fabric: Fabric, size: Number, *, combine: bool) -> Work:
    """Broadcast, or reduce where it combines, by a binomial tree along each side."""
    total, lines = Work(), 1.0
    for side in sides(fabric):

        def body(distance: Number, side: Side = side, lines: Number = lines) -> Work:
            # the last round reaches only those that are left; relu for rounds that do not count
            pairs = lines * (distance - relu(2.0 * distance - side.count))
            return _steps(
                fabric,
                1.0,
                size,
                hops=side.hops(distance),
                sent=pairs * size,
                combined=size if combine else 0.0,
                all_combined=pairs * size if combine else 0.0,
            )

        total = total + _rounds(fabric, size, rounds_of(side.count), body)
        lines = lines * side.count
    return total


def block_tree(fabric: Fabric, size: Number) -> Work:
    """Gather or scatter by a binomial tree along each side: messages of 1, 2, 4, ... blocks."""
    total, block = Work(), size / fabric.participants
    behind = fabric.participants
    for side in sides(fabric):
        n = side.count
        behind = behind / n

        def body(
            distance: Number, side: Side = side, block: Number = block, lines: Number = behind
        ) -> Work:
            n, pair = side.count, 2.0 * distance
            whole = floor(n / pair)
            # positions whose index has this binary digit: each sends its block in this round
            senders = whole * distance + relu(n - whole * pair - distance)
            largest = (distance - relu(pair - n)) * block
            return _steps(
                fabric,
                1.0,
                largest,
                hops=side.hops(distance),
                sent=lines * senders * block,
            )

        total = total + _rounds(fabric, size, rounds_of(n), body)
        block = block * n
    return total


# -- butterflies ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stage:
    """One side of a butterfly, after the fold of the sides before it."""

    side: Side
    rounds: Number
    kept: Number
    folded: Number
    lines: Number


def _stages(fabric: Fabric) -> list[_Stage]:
    """The sides of a butterfly, folded to powers of two.

    Where a side is no power of two, each one beyond it hands its part to a neighbour first, which
    acts for both, and gets its result last.
    """
    found, lines = [], fabric.participants
    for side in sides(fabric):
        rounds = whole_rounds(side.count)
        kept = power_of_two(rounds)
        lines = lines / side.count
        found.append(_Stage(side, rounds, kept, rounds_of(side.count) - rounds, lines))
        lines = lines * kept
    return found


def _fold(fabric: Fabric, stage: _Stage, message: Number, *, combine: bool) -> Work:
    pairs = stage.lines * (stage.side.count - stage.kept)
    return _steps(
        fabric,
        stage.folded,
        message,
        sent=pairs * message,
        combined=message if combine else 0.0,
        all_combined=pairs * message if combine else 0.0,
    )


def _swap(
    fabric: Fabric, stage: _Stage, size: Number, *, halve: bool, combine: bool, times: float = 1.0
) -> Work:
    """Rounds in which each exchanges with the partner 1, 2, 4, ... places away."""

    def body(distance: Number) -> Work:
        message = 0.5 * size / distance if halve else size
        pairs = stage.lines * stage.kept
        return _steps(
            fabric,
            times,
            message,
            hops=stage.side.partner_hops(distance, stage.folded),
            load=stage.side.partner_load(distance),
            sent=pairs * message,
            combined=message if combine else 0.0,
            all_combined=pairs * message if combine else 0.0,
        )

    return _rounds(fabric, size, stage.rounds, body)


def halving(fabric: Fabric, size: Number, *, combine: bool) -> Work:
    """Reduce-scatter by recursive halving, or all-gather (its mirror) where nothing is combined."""
    total = Work()
    for stage in _stages(fabric):
        own = size / stage.side.count
        total = total + _fold(fabric, stage, size - own, combine=combine)
        total = total + _swap(fabric, stage, size, halve=True, combine=combine)
        total = total + _fold(fabric, stage, own, combine=combine)
        size = size / stage.kept
    return total


def halving_doubling(fabric: Fabric, size: Number) -> Work:
    """All-reduce by recursive halving, then doubling."""
    total = Work()
    for stage in _stages(fabric):
        total = total + _fold(fabric, stage, size, combine=True)
        total = total + _swap(fabric, stage, size, halve=True, combine=True)
        total = total + _swap(fabric, stage, size, halve=True, combine=False)
        total = total + _fold(fabric, stage, size, combine=False)
        size = size / stage.kept
    return total


def doubling(fabric: Fabric, size: Number) -> Work:
    """All-reduce in which each exchanges all it has with one partner after the other."""
    total = Work()
    for stage in _stages(fabric):
        total = total + _fold(fabric, stage, size, combine=True)
        total = total + _swap(fabric, stage, size, halve=False, combine=True)
        total = total + _fold(fabric, stage, size, combine=False)
    return total


# -- levels --------------------------------------------------------------------------------------


def levels_of(fabrics: Sequence[Fabric]) -> tuple[tuple[Fabric, int], ...]:
    """The levels of a hierarchical algorithm, innermost first, each with the fabric it is part of.

    The two sides of a mesh or torus are two levels.
    """
    found: list[tuple[Fabric, int]] = []
    for index, fabric in enumerate(fabrics):
        if fabric.topology in ("mesh", "torus"):
            found += [
                (dataclasses.replace(fabric, x=n, y=1.0), index) for n in (fabric.x, fabric.y)
            ]
        else:
            found.append((fabric, index))
    return tuple(found)


def _native(fabric: Fabric, size: Number, *, combine: bool) -> Work:
    """Reduce-scatter or all-gather of one level: direct where all are neighbours, else a ring."""
    if fabric.topology in ("switch", "fully-connected"):
        return all_pairs(fabric, size / fabric.participants, combine=combine)
    return ring(fabric, size, combine=combine)


def hierarchical(kind: str, size: Number, fabrics: Sequence[Fabric]) -> tuple[Work, ...]:
    """What a hierarchical algorithm takes on each fabric.

    Args:
      kind: any kind but ``permute``.
      size: as `jaxcomet.cost.exchange` defines it for the kind, over all participants.
      fabrics: innermost first.

    Returns:
      The work on each fabric, in their order; what is counted over all is summed over the groups
      that act side by side.
    """
    levels = levels_of(fabrics)
    everyone: Number = 1.0
    for fabric, _ in levels:
        everyone = everyone * fabric.participants
    works = [Work() for _ in fabrics]
    inside: Number = 1.0  # participants of all levels further in
    for depth, (fabric, index) in enumerate(levels):
        n = fabric.participants
        groups, outer = everyone / n, everyone / (inside * n)
        part = size / inside
        match kind:
            case "reduce_scatter" | "all_gather":
                work = phase(fabric, _native(fabric, part, combine=kind == "reduce_scatter"))
            case "all_reduce" if depth == len(levels) - 1:
                both = _native(fabric, part, combine=True) + _native(fabric, part, combine=False)
                work = phase(fabric, both)
            case "all_reduce":
                work = phase(fabric, _native(fabric, part, combine=True))
                work = work + phase(fabric, _native(fabric, part, combine=False))
            case "all_to_all":
                work = phase(fabric, all_pairs(fabric, size / n))
            case "broadcast" | "reduce":
                # the outermost level reaches one of each group, the next one all of these groups
                groups = outer
                work = phase(fabric, tree(fabric, size, combine=kind == "reduce"))
            case _:
                groups = outer
                work = phase(fabric, block_tree(fabric, size / outer))
        works[index] = works[index] + work.shared_by(groups)
        inside = inside * n
    return tuple(works)
