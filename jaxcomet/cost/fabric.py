"""Fabrics: what connects the participants of a collective, and how far and how crowded it is.

The one idea: an algorithm is a sequence of steps, and a step's time on a fabric depends on two
counts alone: the hops of its longest message and the messages that share its busiest link
(docs/collectives.md, 2). This module counts them. Messages go the shortest way, on a mesh and a
torus first along x; what has two equally short ways round a ring goes half each way.

Left out: adaptive routing, virtual channels, links of different speed within one fabric.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
from jax.tree_util import register_dataclass

from jaxcomet.arith import (
    Number,
    ceil,
    floor,
    is_exact,
    is_one,
    log2,
    maximum,
    minimum,
    on_host,
    product,
)

Topology = Literal["switch", "fully-connected", "ring", "mesh", "torus"]
Rounding = Literal["none", "down"]


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Fabric:
    """What connects the participants of a collective.

    The unit of time is that of the numbers: cycles in the cost model, seconds or nanoseconds where
    a user takes those for the latencies and for the bandwidth.

    Attributes:
      topology: ``switch`` (one port each, all to all), ``fully-connected`` (a link between every
        two), ``ring``, ``mesh`` (x by y; a line where a side is 1) or ``torus``.
      x: participants along one side, >= 1.
      y: participants along the other one; their product takes part.
      step_latency: alpha: time of one message over one hop: to a neighbour, or through the switch.
      bandwidth: 1 / beta: bytes per unit of time of one link, or of one port of the switch, in each
        direction at once.
      time_per_combined_byte: gamma: time to combine one byte of two operands.
      endpoint_latency: time at the participants, before the first step and after every step.
      rounding: ``down``: the time of each step, without what is spent at its ends, is cut to a
        whole unit, as ASTRA-sim does.
    """

    topology: Topology = dataclasses.field(metadata={"static": True})
    x: Number
    y: Number = 1.0
    step_latency: Number = 0.0
    bandwidth: Number
    time_per_combined_byte: Number = 0.0
    endpoint_latency: Number = 0.0
    rounding: Rounding = dataclasses.field(default="none", metadata={"static": True})

    @property
    def participants(self) -> Number:
        """How many take part."""
        return product([self.x, self.y])


# -- whole logarithms ----------------------------------------------------------------------------


def rounds_of(count: Number) -> Number:
    """Rounds in which each doubles what is reached: log2(count), rounded up; 0 for one alone.

    Gradient: that of the logarithm (straight-through).
    """
    return maximum(ceil(log2(count - _clearance())), 0.0)


def whole_rounds(count: Number) -> Number:
    """log2(count), rounded down."""
    return floor(log2(count + _clearance()))


def _clearance() -> float:
    # between whole numbers, so that an inexact logarithm cannot miss a power of two; where a
    # logarithm counts as itself, at a temperature, it would be no longer that of the count
    return 0.25 if is_exact() else 0.0


def power_of_two(exponent: Number) -> Number:
    """2 to a whole power."""
    return 2.0**exponent if on_host(exponent) else jnp.exp2(exponent)


def beyond(count: Number, threshold: float) -> Number:
    """1 where a whole count is more than a whole threshold, else 0; linear in between."""
    return minimum(maximum(count - threshold, 0.0), 1.0)


# -- one side ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One side of a fabric, or the whole of one without sides.

    Attributes:
      count: participants along it.
      shape: ``flat`` where every two are neighbours, ``line`` or ``ring``.
    """

    count: Number
    shape: Literal["flat", "line", "ring"]

    def hops(self, distance: Number) -> Number:
        """Hops between two that are `distance` places apart (1 to count - 1)."""
        if self.shape == "flat":
            return 1.0
        return minimum(distance, self.count - distance) if self.shape == "ring" else distance

    def partner_hops(self, distance: Number, folded: Number) -> Number:
        """Hops to the partner of a butterfly; twice as far where a fold took out every second."""
        if self.shape == "flat":
            return 1.0
        far = floor(0.5 * self.count) if self.shape == "ring" else self.count - 1.0
        return minimum(distance * (1.0 + folded), far)

    def partner_load(self, distance: Number) -> Number:
        """Messages on the busiest link when all exchange at a distance, as in a butterfly.

        On a line the blocks of 2 d participants swap halves over their middle link: d. On a ring
        the last exchange, at half the ring, goes both ways round.
        """
        if self.shape == "flat":
            return 1.0
        if self.shape == "line":
            return distance
        return maximum(1.0, minimum(distance, 0.25 * self.count))


def sides(fabric: Fabric) -> tuple[Side, ...]:
    """The sides of a fabric, x first."""
    match fabric.topology:
        case "mesh":
            return Side(fabric.x, "line"), Side(fabric.y, "line")
        case "torus":
            return Side(fabric.x, "ring"), Side(fabric.y, "ring")
        case "ring":
            return (Side(fabric.participants, "ring"),)
        case _:
            return (Side(fabric.participants, "flat"),)


# -- the whole fabric ----------------------------------------------------------------------------


def _farthest(side: Side) -> Number:
    return floor(0.5 * side.count) if side.shape == "ring" else side.count - 1.0


def diameter(fabric: Fabric) -> Number:
    """Hops between the two that are farthest apart; 0 for one alone."""
    found = sides(fabric)
    if found[0].shape == "flat":
        return beyond(found[0].count, 1.0)
    return sum((_farthest(s) for s in found[1:]), start=_farthest(found[0]))


def _odd(count: Number) -> Number:
    return minimum(count - 2.0 * floor(0.5 * count), 1.0)


def _no_cycle(fabric: Fabric) -> Number:
    """1 on a mesh with two odd sides: it has no closed walk through all over links alone."""
    terms = [_odd(fabric.x), _odd(fabric.y), beyond(fabric.x, 1.0), beyond(fabric.y, 1.0)]
    return product(terms)


def ring_hops(fabric: Fabric) -> Number:
    """Hops of one step of a ring: 1, but 2 on a mesh with two odd sides.

    On a line each block goes both ways at once instead, from neighbour to neighbour.
    """
    return 1.0 + _no_cycle(fabric) if fabric.topology == "mesh" else 1.0


def two_ways(fabric: Fabric) -> Number:
    """1 where a ring may run both ways at once over different links, else 0."""
    if fabric.topology == "switch":
        return 0.0
    if fabric.topology == "mesh":
        return minimum(beyond(fabric.x, 1.0), beyond(fabric.y, 1.0))
    return beyond(fabric.participants, 2.0)


def neighbour_hops(fabric: Fabric) -> Number:
    """Hops from each to the next one, and from the last to the first.

    1 where a closed walk exists; 2 on a mesh with two odd sides and on a line (in the order 0, 2,
    4, ..., 3, 1).
    """
    if fabric.topology != "mesh":
        return 1.0
    line = maximum(is_one(fabric.x), is_one(fabric.y))
    return 1.0 + maximum(_no_cycle(fabric), product([line, beyond(fabric.participants, 2.0)]))


def _cut(side: Side) -> Number:
    """Messages over the busiest link of a side, one direction, if each sends one to each."""
    n = side.count
    if side.shape == "line":
        return floor(0.5 * n) * ceil(0.5 * n)
    # n^2 / 8: pairs on a ring, over the shorter way; two share one link
    return maximum(0.125 * (n * n - _odd(n)), beyond(n, 1.0))


def all_pairs_load(fabric: Fabric) -> Number:
    """Messages on the busiest link or port if each sends one to each other one."""
    found = sides(fabric)
    if fabric.topology == "switch":
        return fabric.participants - 1.0
    if fabric.topology == "fully-connected":
        return 1.0
    if len(found) == 1:
        return _cut(found[0])
    x, y = found
    return maximum(y.count * _cut(x), x.count * _cut(y))


def _pair_hops(side: Side) -> Number:
    """Hops of all ordered pairs on one side."""
    n = side.count
    if side.shape == "line":
        return n * (n * n - 1.0) / 3.0
    return 0.25 * n * (n * n - _odd(n))


def all_pairs_hops(fabric: Fabric) -> Number:
    """Hops of all messages together if each sends one to each other one."""
    found, p = sides(fabric), fabric.participants
    if found[0].shape == "flat":
        return p * (p - 1.0)
    if len(found) == 1:
        return _pair_hops(found[0])
    x, y = found
    return y.count * y.count * _pair_hops(x) + x.count * x.count * _pair_hops(y)


def root_load(fabric: Fabric) -> Number:
    """Messages on the root's busiest link or port if it gets one from each; it sits in a corner."""
    found, p = sides(fabric), fabric.participants
    if fabric.topology == "switch":
        return p - 1.0
    if fabric.topology == "fully-connected":
        return 1.0

    def into(side: Side) -> Number:
        return ceil(0.5 * (side.count - 1.0)) if side.shape == "ring" else side.count - 1.0

    if len(found) == 1:
        return into(found[0])
    x, y = found
    return maximum(x.count * into(y), into(x))


def _root_hops(side: Side) -> Number:
    """Hops of all on one side to its first."""
    n = side.count
    return 0.25 * (n * n - _odd(n)) if side.shape == "ring" else 0.5 * n * (n - 1.0)


def root_hops(fabric: Fabric) -> Number:
    """Hops of all messages together if each sends one to the root."""
    found, p = sides(fabric), fabric.participants
    if found[0].shape == "flat":
        return p - 1.0
    if len(found) == 1:
        return _root_hops(found[0])
    x, y = found
    return y.count * _root_hops(x) + x.count * _root_hops(y)


def node_links(fabric: Fabric) -> Number:
    """Links, or ports, of the participant that has the fewest (a corner); 1 for one alone."""
    if fabric.topology == "switch":
        return 1.0
    if fabric.topology == "fully-connected":
        return maximum(fabric.participants - 1.0, 1.0)
    most = {"line": 1.0, "ring": 2.0}
    ends = [minimum(s.count - 1.0, most[s.shape]) for s in sides(fabric)]  # pyright: ignore[reportArgumentType]
    return maximum(sum(ends[1:], start=ends[0]), 1.0)


def all_links(fabric: Fabric) -> Number:
    """Links, or ports, of all participants together, each direction counted; at least 1."""
    found, p = sides(fabric), fabric.participants
    if fabric.topology == "switch":
        return p
    if fabric.topology == "fully-connected":
        return maximum(p * (p - 1.0), 1.0)
    total: Number = 0.0
    for side in found:
        closing = beyond(side.count, 2.0) if side.shape == "ring" else 0.0
        total = total + p / side.count * 2.0 * (side.count - 1.0 + closing)
    return maximum(total, 1.0)
