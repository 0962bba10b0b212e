"""Collectives as moves through a mesh: the algorithm ``mesh``, after HISIM as COMET uses it.

The one idea: what a collective needs of the memories' links, of the busiest channel of the mesh and
of the vector engine is a closed form for each kind (docs/equations.md, 3); no step is followed. The
other algorithms follow their steps (`jaxcomet.cost.schedule`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from jaxcomet.arith import Number, maximum, minimum, per, product, relu, times_rate
from jaxcomet.cost.conventions import Conventions
from jaxcomet.cost.fabric import Fabric, all_pairs_hops, all_pairs_load, neighbour_hops
from jaxcomet.cost.transfer import mesh_hops
from jaxcomet.hardware.machine import Memory, Network, VectorEngine, VectorOp


@dataclass(frozen=True, kw_only=True)
class Between:
    """One collective between the instances of a memory.

    Attributes:
      rules: conventions.
      memory: where each participant holds its part.
      network: its network.
      link: bandwidth of a peer link, bytes per cycle.
      engine: what combines; None where nothing is combined.
      op: its elementary operation; None where nothing is combined.
      x: participants along mesh x.
      y: participants along mesh y.
      elements: elements of a part.
      bits: bits per element on the way.
    """

    rules: Conventions
    memory: Memory
    network: Network
    link: Number
    engine: VectorEngine | None
    op: VectorOp | None
    x: Number
    y: Number
    elements: Number
    bits: Number

    @cached_property
    def participants(self) -> Number:
        """How many take part."""
        return product([self.x, self.y])

    @cached_property
    def hops(self) -> Number:
        """Hops across the mesh of participants."""
        return mesh_hops(self.x, self.y)

    @cached_property
    def part_bytes(self) -> Number:
        """Bytes of a part."""
        return self.elements * (self.bits / 8.0)

    @cached_property
    def bandwidth(self) -> Number:
        """Bytes per cycle of one participant's link."""
        return minimum(self.link, self.network.port_bandwidth_bytes_per_cycle)

    @cached_property
    def fabric(self) -> Fabric:
        """What connects the participants, for algorithms that follow their steps."""
        network = self.network
        combine: Number = 0.0
        if self.engine is not None and self.op is not None:
            combine = self.op.cycles / (self.engine.lanes * (self.bits / 8.0))
        return Fabric(
            topology="mesh",
            x=self.x,
            y=self.y,
            step_latency=network.hop_latency_cycles + network.queuing_delay_cycles,
            bandwidth=minimum(self.bandwidth, network.channel_width_bits / 8.0),
            time_per_combined_byte=combine,
        )


@dataclass(frozen=True, kw_only=True)
class MeshNeed:
    """What one execution of a collective needs, before rounding."""

    memory_cycles: Number
    words: Number
    word_hops: Number
    hops: Number
    arithmetic_cycles: Number
    sent_bytes: Number
    energy_pj: Number


def mesh_need(kind: str, b: Between) -> MeshNeed:
    """What a collective of a kind needs with the algorithm ``mesh``."""
    return _NEEDS[kind](b)


def _words(b: Between, tiles: Number, hop_tiles: Number) -> Number:
    """Words through the busiest channel: of `tiles` parts, or of as many as the program counts."""
    times = hop_tiles if b.rules.mesh_volume == "hops" else tiles
    return per(times * b.elements * b.bits, b.network.channel_width_bits)


def _at_memory(b: Between) -> Number:
    """Energy of one byte that is read at one end and written at the other."""
    return b.memory.read_energy_pj_per_byte + b.memory.write_energy_pj_per_byte


def _several(b: Between) -> Number:
    return minimum(b.participants - 1.0, 1.0)


def _combining(b: Between, ring_elements: Number) -> tuple[Number, Number]:
    """(cycles, energy) of combining: `ring_elements` each, or as the program counts."""
    assert b.engine is not None
    assert b.op is not None
    p = b.participants
    if b.rules.all_reduce_arithmetic == "hops":
        each, everyone = b.elements * b.hops * p, b.elements * b.hops * p
    else:
        each, everyone = ring_elements, b.elements * (p - 1.0)
    return per(each * b.op.cycles, b.engine.lanes), everyone * b.op.energy_pj


def _ring_share(b: Between) -> Number:
    """Share of its part that each participant sends in an all-reduce: 2 (p - 1) / p."""
    return 2.0 * (b.participants - 1.0) / b.participants


def _all_reduce(b: Between) -> MeshNeed:
    rules, p, part_bytes = b.rules, b.participants, b.part_bytes
    ring_share = _ring_share(b)
    several = _several(b)
    if rules.all_reduce_memory == "squared":
        exchange = per(part_bytes * p, b.bandwidth)
        memory_cycles = several * (2.0 * exchange * p + exchange)
    else:
        # each participant reads what it sends and writes what it receives
        memory_cycles = per(2.0 * ring_share * part_bytes, b.bandwidth)
    words = _words(b, ring_share, 2.0 * b.hops)
    arithmetic, combining = _combining(b, 0.5 * ring_share * b.elements)
    repeats = p if rules.all_reduce_energy == "squared" else 1.0
    energy = several * p * part_bytes * repeats * _at_memory(b) + combining
    return MeshNeed(
        memory_cycles=memory_cycles,
        words=words,
        word_hops=p * words,
        hops=2.0 * b.hops,
        arithmetic_cycles=arithmetic,
        sent_bytes=p * ring_share * part_bytes,
        energy_pj=energy,
    )


def _reduce_scatter(b: Between) -> MeshNeed:
    # reduce and scatter, as an all-reduce is reduce and broadcast
    p, ring_share = b.participants, _ring_share(b)
    words = _words(b, 0.5 * ring_share, 2.0 * b.hops)
    arithmetic, combining = _combining(b, 0.5 * ring_share * b.elements)
    sent = (p - 1.0) * b.part_bytes
    return MeshNeed(
        memory_cycles=per(ring_share * b.part_bytes, b.bandwidth),
        words=words,
        word_hops=p * words,
        hops=2.0 * b.hops,
        arithmetic_cycles=arithmetic,
        sent_bytes=sent,
        energy_pj=sent * _at_memory(b) + combining,
    )


def _all_gather(b: Between) -> MeshNeed:
    # gather and broadcast
    p = b.participants
    words = _words(b, p - 1.0, 2.0 * b.hops)
    received = (p - 1.0) * b.part_bytes
    return MeshNeed(
        memory_cycles=per(2.0 * received, b.bandwidth),
        words=words,
        word_hops=p * words,
        hops=2.0 * b.hops,
        arithmetic_cycles=0.0,
        sent_bytes=p * received,
        energy_pj=p * received * _at_memory(b),
    )


def _all_to_all(b: Between) -> MeshNeed:
    p, ring_share = b.participants, _ring_share(b)
    words = _words(b, all_pairs_load(b.fabric) / p, b.hops)
    pairs = all_pairs_hops(b.fabric) / p
    sent = (p - 1.0) * b.part_bytes
    return MeshNeed(
        memory_cycles=per(ring_share * b.part_bytes, b.bandwidth),
        words=words,
        word_hops=per(pairs * b.elements * b.bits, b.network.channel_width_bits),
        hops=b.hops,
        arithmetic_cycles=0.0,
        sent_bytes=sent,
        energy_pj=sent * _at_memory(b),
    )


def _root_bandwidth(b: Between) -> Number:
    """Bytes per cycle of the one participant that deals with all others."""
    network = b.network
    ports = times_rate(network.num_ports, network.port_bandwidth_bytes_per_cycle)
    return minimum(b.link, ports, b.memory.child_bandwidth_bytes_per_cycle)


def _gather(b: Between) -> MeshNeed:
    """Gather, and its mirror scatter."""
    part_bytes = b.part_bytes
    received = (b.participants - 1.0) * part_bytes
    memory_cycles = maximum(
        per(part_bytes, b.bandwidth) * minimum(b.hops, 1.0), per(received, _root_bandwidth(b))
    )
    words = _words(b, b.participants - 1.0, b.hops)
    return MeshNeed(
        memory_cycles=memory_cycles,
        words=words,
        word_hops=0.5 * b.hops * words,
        hops=b.hops,
        arithmetic_cycles=0.0,
        sent_bytes=received,
        energy_pj=received * _at_memory(b),
    )


def _tiles_at_root(b: Between, merged: bool) -> tuple[Number, Number, Number]:
    """(parts that pass the root, words, words x routers); merged: the network makes them one."""
    others = b.participants - 1.0
    tiles = _several(b) if merged else others
    words = _words(b, tiles, b.hops)
    # half the way on average, and one link more for each further end of a merged part
    further = relu(others - 1.0) if merged else 0.0
    return tiles, words, words * (0.5 * b.hops + further)


def _broadcast(b: Between) -> MeshNeed:
    tiles, words, word_hops = _tiles_at_root(b, b.network.broadcast)
    sent, received = tiles * b.part_bytes, (b.participants - 1.0) * b.part_bytes
    memory_cycles = maximum(
        per(sent, _root_bandwidth(b)), per(b.part_bytes, b.bandwidth) * minimum(b.hops, 1.0)
    )
    energy = sent * b.memory.read_energy_pj_per_byte + received * b.memory.write_energy_pj_per_byte
    return MeshNeed(
        memory_cycles=memory_cycles,
        words=words,
        word_hops=word_hops,
        hops=b.hops,
        arithmetic_cycles=0.0,
        sent_bytes=sent,
        energy_pj=energy,
    )


def _reduce(b: Between) -> MeshNeed:
    tiles, words, word_hops = _tiles_at_root(b, b.network.reduction)
    sent, received = (b.participants - 1.0) * b.part_bytes, tiles * b.part_bytes
    memory_cycles = maximum(
        per(b.part_bytes, b.bandwidth) * minimum(b.hops, 1.0), per(received, _root_bandwidth(b))
    )
    arithmetic, combining = _combining(b, tiles * b.elements)
    energy = (
        sent * b.memory.read_energy_pj_per_byte
        + received * b.memory.write_energy_pj_per_byte
        + combining
    )
    return MeshNeed(
        memory_cycles=memory_cycles,
        words=words,
        word_hops=word_hops,
        hops=b.hops,
        arithmetic_cycles=arithmetic,
        sent_bytes=sent,
        energy_pj=energy,
    )


def _permute(b: Between) -> MeshNeed:
    several = _several(b)
    hops = several * neighbour_hops(b.fabric)
    words = _words(b, several, hops)
    sent = several * b.participants * b.part_bytes
    return MeshNeed(
        memory_cycles=per(2.0 * several * b.part_bytes, b.bandwidth),
        words=words,
        word_hops=b.participants * hops * words,
        hops=hops,
        arithmetic_cycles=0.0,
        sent_bytes=sent,
        energy_pj=sent * _at_memory(b),
    )


_NEEDS: dict[str, Callable[[Between], MeshNeed]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _gather,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "permute": _permute,
}
