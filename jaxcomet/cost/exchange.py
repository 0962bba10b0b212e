"""Alpha-beta costs of collectives on a fabric, as pure functions of numbers.

The one idea: ``exchange(kind, size_bytes, fabric)`` prices every algorithm that the kind and the
topology allow by its steps (docs/collectives.md; Thakur, Rabenseifner and Gropp 2005,
doi:10.1177/1094342005051521) and takes the fastest, or the one that is asked for. On Python floats
it runs without JAX; arrays broadcast, and the choice is then made element by element.

What ``size_bytes`` means, for p participants:

- all_reduce, reduce, reduce_scatter, all_to_all, permute: the bytes that each participant holds
  before (an all-to-all keeps 1/p of them, a reduce-scatter leaves 1/p with each);
- broadcast: the message;
- gather, all_gather, scatter: the whole, of which each participant holds, or gets, 1/p.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

import jax
import numpy as np
from jax.tree_util import register_dataclass

from jaxcomet.arith import (
    Number,
    is_exact,
    maximum,
    minimum,
    per,
    product,
    relu,
    select,
    temperature,
)
from jaxcomet.cost import schedule
from jaxcomet.cost.fabric import (
    Fabric,
    Topology,
    all_links,
    all_pairs_load,
    beyond,
    diameter,
    node_links,
)
from jaxcomet.cost.schedule import Work, phase
from jaxcomet.mapping import CollectiveKind


class ExchangeError(ValueError):
    """A kind, topology or algorithm that does not exist or does not fit; the message lists all."""


_Builder = Callable[[Fabric, Number], Work]


def _block(fabric: Fabric, size: Number) -> Number:
    return size / fabric.participants


def _direct_all_reduce(f: Fabric, s: Number) -> Work:
    block = _block(f, s)
    return schedule.all_pairs(f, block, combine=True) + schedule.all_pairs(f, block)


def _scattered(spread: _Builder, gathered: _Builder) -> _Builder:
    """Broadcast as scatter and all-gather, reduce as reduce-scatter and gather."""
    return lambda f, s: spread(f, s) + gathered(f, s)


def _root(f: Fabric, s: Number) -> Work:
    return schedule.one_root(f, _block(f, s))


def _pass(algorithm: str, *, combine: bool) -> _Builder:
    """Reduce-scatter (combining) or all-gather by an algorithm."""
    builders: dict[str, _Builder] = {
        "direct": lambda f, s: schedule.all_pairs(f, _block(f, s), combine=combine),
        "ring": lambda f, s: schedule.ring(f, s, combine=combine),
        "bidirectional-ring": lambda f, s: schedule.two_rings(f, s, combine=combine),
        "halving-doubling": lambda f, s: schedule.halving(f, s, combine=combine),
    }
    return builders[algorithm]


_PASSES = ("direct", "ring", "bidirectional-ring", "halving-doubling")
_WHOLE: dict[str, _Builder] = {"tree": schedule.block_tree, "direct": _root}


def _rooted(combine: bool) -> dict[str, _Builder]:
    """Broadcast, or reduce where it combines."""
    found: dict[str, _Builder] = {
        name: _scattered(
            _WHOLE["direct" if name == "direct" else "tree"], _pass(name, combine=combine)
        )
        for name in _PASSES
    }
    found["tree"] = lambda f, s: schedule.tree(f, s, combine=combine)
    found["one-shot"] = lambda f, s: schedule.one_root(f, s, combine=combine)
    return found


def _all_reduces() -> dict[str, _Builder]:
    found: dict[str, _Builder] = {
        "direct": _direct_all_reduce,
        "ring": _scattered(_pass("ring", combine=True), _pass("ring", combine=False)),
        "bidirectional-ring": _scattered(
            _pass("bidirectional-ring", combine=True), _pass("bidirectional-ring", combine=False)
        ),
        "halving-doubling": schedule.halving_doubling,
        "recursive-doubling": schedule.doubling,
        "tree": lambda f, s: schedule.tree(f, s, combine=True) + schedule.tree(f, s, combine=False),
        "one-shot": lambda f, s: schedule.all_pairs(f, s, combine=True),
    }
    return found


_BUILDERS: dict[str, dict[str, _Builder]] = {
    "broadcast": _rooted(combine=False),
    "reduce": _rooted(combine=True),
    "gather": {**_WHOLE, "ring": schedule.chain},
    "scatter": {**_WHOLE, "ring": schedule.chain},
    "all_gather": {name: _pass(name, combine=False) for name in _PASSES},
    "reduce_scatter": {name: _pass(name, combine=True) for name in _PASSES},
    "all_reduce": _all_reduces(),
    "all_to_all": {
        "direct": lambda f, s: schedule.all_pairs(f, _block(f, s)),
        "pairwise": schedule.pairwise,
    },
    "permute": {"direct": schedule.to_neighbour},
}

ALGORITHMS = (
    "direct",
    "ring",
    "bidirectional-ring",
    "halving-doubling",
    "recursive-doubling",
    "tree",
    "pairwise",
    "one-shot",
    "hierarchical",
)
"""All algorithms, in the order that decides a tie."""

_SIDED = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
_FLAT = ("switch", "fully-connected")


def algorithms(kind: str, topology: str) -> tuple[str, ...]:
    """The algorithms that a kind of collective has on a topology, in the order that decides a tie.

    A two-way ring needs two links at each participant, so a switch has none; exchanges pair by pair
    need neighbours; ``hierarchical`` works on the two sides of a mesh or torus. (Across several
    fabrics it is the only algorithm, for every kind but ``permute``.)

    Raises:
      ExchangeError: an unknown kind or topology.

    Example:
      >>> algorithms("all_to_all", "torus")
      ('direct', 'hierarchical')
    """
    if kind not in _BUILDERS:
        raise ExchangeError(f"kind: got {kind!r}; expected one of {', '.join(_BUILDERS)}")
    if topology not in get_args(Topology):
        known = ", ".join(get_args(Topology))
        raise ExchangeError(f"topology: got {topology!r}; expected one of {known}")

    def fits(name: str) -> bool:
        if name == "hierarchical":
            return kind in _SIDED and topology in ("mesh", "torus")
        there = name in _BUILDERS[kind]
        if name == "bidirectional-ring":
            return there and topology != "switch"
        return there and (name != "pairwise" or topology in _FLAT)

    return tuple(name for name in ALGORITHMS if fits(name))


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What one collective takes. Times in the fabric's unit; numbers may be arrays.

    Attributes:
      kind: kind of collective.
      names: the algorithms that were compared.
      choice: position in `names` of the fastest one (a whole number; a leaf, as it may differ from
        element to element).
      participants: how many take part.
      size_bytes: see the module docstring.
      steps: steps, one after the other.
      hops: hops of the longest message of each step, summed over the steps.
      link_bytes: bytes over the busiest link of each step, summed over the steps.
      sent_bytes: bytes that all participants send together.
      hop_bytes: the same, each byte times the hops that it goes.
      combined_bytes: bytes of results that all participants combine together.
      latency_time: time of the hops, and at the endpoints.
      bandwidth_time: time of the bytes; with ``rounding="down"`` less what the steps lose.
      arithmetic_time: time to combine.
    """

    kind: str = dataclasses.field(metadata={"static": True})
    names: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    choice: Number
    participants: Number
    size_bytes: Number
    steps: Number
    hops: Number
    link_bytes: Number
    sent_bytes: Number
    hop_bytes: Number
    combined_bytes: Number
    latency_time: Number
    bandwidth_time: Number
    arithmetic_time: Number

    @property
    def time(self) -> Number:
        """The three shares together."""
        return self.latency_time + self.bandwidth_time + self.arithmetic_time

    @property
    def sent_bytes_per_participant(self) -> Number:
        """Bytes that a participant sends on average."""
        return self.sent_bytes / self.participants

    @property
    def algorithm(self) -> str:
        """The algorithm of a single exchange; for arrays see `algorithm_at`."""
        return self.algorithm_at(0)

    def algorithm_at(self, index: int) -> str:
        """The algorithm of one element of a batch (in flat order)."""
        return chosen(self.names, self.choice, index)


def chosen(names: tuple[str, ...], choice: Number, index: int) -> str:
    """The name at an element of a choice: its only one, or that of the flat index."""
    flat = np.ravel(np.asarray(choice))
    return names[int(flat[index if flat.size > 1 else 0])]


def pick(candidates: Sequence[Any], times: Sequence[Number]) -> tuple[Any, Number]:
    """The candidate of the least time, element by element, and its position; ties to the first.

    Args:
      candidates: pytrees of one structure.
      times: their times.

    Returns:
      The fastest, and its position as a float. Gradient: that of the chosen one. At a temperature
      (`arith.relaxed`) the numbers go over from one candidate to the next one as this gets faster
      by that share of the time, 1 % at most: they would jump where only the times are equal.
    """
    best, least, choice = candidates[0], times[0], 0.0
    for index, (candidate, time) in enumerate(zip(candidates[1:], times[1:], strict=True), 1):
        if is_exact() and isinstance(time, float) and isinstance(least, float):
            if time < least:
                best, least, choice = candidate, time, float(index)
            continue
        either = _either(time, least)
        best = jax.tree.map(either, candidate, best)
        choice = select(time < least, float(index), choice)
        least = either(time, least)
    return best, choice


def _either(time: Number, least: Number) -> Callable[[Number, Number], Number]:
    """(number of the newcomer, number of the best so far) -> that of the faster one."""
    if is_exact():
        better = time < least
        return lambda new, old: select(better, new, old)
    share = minimum(temperature(), 0.01)
    lead = relu(least - time) / select(least > 0.0, share * least, 1.0)
    weight = minimum(lead, 1.0)
    return lambda new, old: old + weight * (new - old)


def _floats(fabric: Fabric) -> Fabric:
    """Whole numbers of a user as floats: only those run without JAX."""
    numbers = {f.name: getattr(fabric, f.name) for f in fields(fabric)}
    whole = {name: float(v) for name, v in numbers.items() if isinstance(v, int)}
    return dataclasses.replace(fabric, **whole) if whole else fabric  # pyright: ignore[reportArgumentType]


def _known(kind: str, algorithm: str, allowed: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The algorithms to compare."""
    if algorithm == "auto":
        return allowed
    if algorithm not in allowed:
        raise ExchangeError(
            f"algorithm: got {algorithm!r} for {kind} on {where}; expected auto or one of "
            f"{', '.join(allowed)}"
        )
    return (algorithm,)


def _total(works: Sequence[Work]) -> Work:
    return sum(works[1:], start=works[0])


def works_of(
    kind: str, size_bytes: Number, fabrics: tuple[Fabric, ...], algorithm: str
) -> tuple[Work, ...]:
    """What one algorithm takes on each of its fabrics, innermost first; see `exchange`."""
    if algorithm == "hierarchical":
        return schedule.hierarchical(kind, size_bytes, fabrics)
    (fabric,) = fabrics
    return (phase(fabric, _BUILDERS[kind][algorithm](fabric, size_bytes)),)


def exchange(
    kind: CollectiveKind,
    size_bytes: Number | int,
    fabric: Fabric | tuple[Fabric, ...],
    *,
    algorithm: str = "auto",
) -> Exchange:
    """Time, steps and bytes of one collective between the participants of a fabric.

    Args:
      kind: what is exchanged with whom.
      size_bytes: bytes, as the module docstring defines them for the kind.
      fabric: what connects the participants; or several, innermost first: the participants of the
        second one are groups that the first one connects, and so on.
      algorithm: one of `algorithms`, or ``auto``: the fastest, of equal ones the first.

    Returns:
      The cost; all 0 for one participant. Gradient: that of the chosen algorithm, finite
      everywhere; rounding is straight-through.

    Raises:
      ExchangeError: an unknown kind or algorithm, or one that the kind lacks on the topology.

    Example:
      >>> switch = Fabric(topology="switch", x=8.0, step_latency=10.0, bandwidth=50.0)  # ns, B/ns
      >>> best = exchange("all_reduce", 8000.0, switch)
      >>> best.algorithm, round(best.time), best.steps
      ('direct', 300, 2.0)
      >>> round(exchange("all_reduce", 8000.0, switch, algorithm="ring").time)
      420
    """
    size = float(size_bytes) if isinstance(size_bytes, int) else size_bytes
    fabrics = tuple(_floats(f) for f in (fabric if isinstance(fabric, tuple) else (fabric,)))
    if not fabrics:
        raise ExchangeError("fabric: got no fabric; expected one, or several innermost first")
    allowed = algorithms(kind, fabrics[0].topology)
    where = f"topology {fabrics[0].topology}"
    if len(fabrics) > 1:
        if kind == "permute":
            raise ExchangeError("fabric: got several for permute; expected one, of neighbours")
        allowed, where = ("hierarchical",), f"{len(fabrics)} fabrics"
    names = _known(kind, algorithm, allowed, where)
    works = [_total(works_of(kind, size, fabrics, name)) for name in names]
    times = [w.latency + w.bandwidth + w.arithmetic for w in works]
    work, choice = pick(works, times)
    return Exchange(
        kind=kind,
        names=names,
        choice=choice,
        participants=product([f.participants for f in fabrics]),
        size_bytes=size,
        steps=work.steps,
        hops=work.hops,
        link_bytes=work.link_bytes,
        sent_bytes=work.sent_bytes,
        hop_bytes=work.hop_bytes,
        combined_bytes=work.combined_bytes,
        latency_time=work.latency,
        bandwidth_time=work.bandwidth,
        arithmetic_time=work.arithmetic,
    )


def bound(kind: CollectiveKind, size_bytes: Number | int, fabric: Fabric) -> Number:
    """Time that no algorithm can go below on a fabric: latency and bandwidth, without combining.

    Latency: the hops between the two that are farthest apart (one hop for ``permute``). Bandwidth:
    what the participant with the fewest links must send or receive, over all of these; for an
    all-reduce 2 (p - 1) S, which all must send together, over all links; for an all-to-all also
    what must pass the middle of the fabric. Holds for ``rounding="none"``.

    Args:
      kind: kind of collective.
      size_bytes: as for `exchange`.
      fabric: what connects the participants.

    Returns:
      The time; 0 for one participant.
    """
    algorithms(kind, fabric.topology)
    f, size = _floats(fabric), size_bytes
    p = f.participants
    others = (p - 1.0) / p * size
    hops, rate = diameter(f), f.bandwidth
    match kind:
        case "all_reduce":
            least = 2.0 * (p - 1.0) * size / all_links(f)
        case "all_to_all":
            middle = beyond(p, 1.0) * all_pairs_load(f) * size / p
            least = maximum(others / node_links(f), middle)
        case "broadcast" | "reduce":
            least = beyond(p, 1.0) * size / node_links(f)
        case "permute":
            least, hops = beyond(p, 1.0) * size / node_links(f), beyond(p, 1.0)
        case _:
            least = others / node_links(f)
    ends = beyond(p, 1.0) * 2.0 * f.endpoint_latency
    return hops * f.step_latency + ends + per(least, rate)
