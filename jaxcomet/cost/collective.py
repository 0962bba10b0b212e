"""Time and energy of explicit collectives.

One execution moves one part per participant. All-reduce (docs/equations.md, 3.1) and gather (3.2)
over a mesh of x by y participants, each holding `s` elements; time is memory + mesh + arithmetic
and is never hidden by computing.
"""

import dataclasses
from dataclasses import dataclass

from jax.tree_util import register_dataclass

from jaxcomet.arith import Number, ceil, floor, maximum, minimum, per, product
from jaxcomet.cost.placement import Placement
from jaxcomet.cost.router import mesh_energy_pj
from jaxcomet.cost.transfer import mesh_hops, mesh_time
from jaxcomet.hardware.machine import Memory, Network
from jaxcomet.mapping import Collective


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class CollectiveCost:
    """One explicit collective.

    Attributes:
      kind: ``all_reduce`` or ``gather``.
      tensor: what is exchanged.
      memory: where the participants hold it.
      participants: how many take part in one exchange.
      part_elements: elements that each participant holds.
      part_bytes: the same in bytes.
      memory_cycles: time at the memories' links, one execution.
      mesh_cycles: time in the mesh.
      arithmetic_cycles: time to combine.
      cycles: all three, whole cycles.
      sent_bytes: bytes that all participants of one exchange send together.
      energy_pj: energy of one exchange (memories, mesh and arithmetic).
      mesh_energy_pj: the mesh's share of it.
      executions: exchanges one after the other over the whole run.
      groups: exchanges that run side by side.
    """

    kind: str = dataclasses.field(metadata={"static": True})
    tensor: str = dataclasses.field(metadata={"static": True})
    memory: str = dataclasses.field(metadata={"static": True})
    participants: Number
    part_elements: Number
    part_bytes: Number
    memory_cycles: Number
    mesh_cycles: Number
    arithmetic_cycles: Number
    cycles: Number
    sent_bytes: Number
    energy_pj: Number
    mesh_energy_pj: Number
    executions: Number
    groups: Number

    @property
    def total_cycles(self) -> Number:
        """Cycles over the whole run."""
        return self.cycles * self.executions

    @property
    def total_energy_pj(self) -> Number:
        """Energy over the whole run and all groups."""
        return self.energy_pj * self.executions * self.groups

    @property
    def total_sent_bytes(self) -> Number:
        """Bytes over the whole run and all groups."""
        return self.sent_bytes * self.executions * self.groups


def collective_cost(
    placement: Placement, node: Collective, executions: Number, groups: Number
) -> CollectiveCost:
    """What a collective takes; see the module docstring."""
    machine, rules = placement.machine, placement.conventions
    memory = machine.memories[node.memory]
    network = memory.network
    link = memory.link_bandwidth_bytes_per_cycle
    assert network is not None
    assert link is not None
    x, y = placement.count(node.x), placement.count(node.y)
    participants = product([x, y])
    elements = product([placement.steps(loop) for loop in node.tile])
    bits = float(placement.workload.producer(node.tensor).bits)  # pyright: ignore[reportOptionalMemberAccess]
    part_bytes = elements * (bits / 8.0)
    hops = mesh_hops(x, y)
    if node.kind == "all_reduce":
        need = _all_reduce(
            placement, node, memory, network, link, elements, bits, participants, hops
        )
    else:
        need = _gather(placement, memory, network, link, elements, bits, participants, hops)
    mesh_cycles = mesh_time(need.hops, need.words, network, rules)
    mesh_pj = mesh_energy_pj(
        machine.router,
        network,
        x=x,
        y=y,
        hops=need.hops,
        words=need.words,
        word_hops=need.word_hops,
        rules=rules,
    )
    if rules.collective_staging == "serial":
        cycles = ceil(need.memory_cycles) + floor(mesh_cycles + need.arithmetic_cycles)
    else:
        exchange = maximum(ceil(need.memory_cycles), ceil(mesh_cycles))
        cycles = exchange + ceil(need.arithmetic_cycles)
    return CollectiveCost(
        kind=node.kind,
        tensor=node.tensor,
        memory=node.memory,
        participants=participants,
        part_elements=elements,
        part_bytes=part_bytes,
        memory_cycles=need.memory_cycles,
        mesh_cycles=mesh_cycles,
        arithmetic_cycles=need.arithmetic_cycles,
        cycles=cycles,
        sent_bytes=need.sent_bytes,
        energy_pj=need.energy_pj + mesh_pj,
        mesh_energy_pj=mesh_pj,
        executions=executions,
        groups=groups,
    )


@dataclass(frozen=True, kw_only=True)
class _Exchange:
    """What one execution of a collective needs, before rounding."""

    memory_cycles: Number
    words: Number
    word_hops: Number
    hops: Number
    arithmetic_cycles: Number
    sent_bytes: Number
    energy_pj: Number


def _all_reduce(
    placement: Placement,
    node: Collective,
    memory: Memory,
    network: Network,
    link: Number,
    elements: Number,
    bits: float,
    participants: Number,
    hops: Number,
) -> _Exchange:
    rules = placement.conventions
    engine = placement.vector_engine
    assert engine is not None
    assert node.function is not None
    op = engine.ops[node.function]
    bandwidth = minimum(link, network.port_bandwidth_bytes_per_cycle)
    p, part_bytes = participants, elements * (bits / 8.0)
    ring_share = 2.0 * (p - 1.0) / p
    several = minimum(p - 1.0, 1.0)
    if rules.all_reduce_memory == "squared":
        exchange = per(part_bytes * p, bandwidth)
        memory_cycles = several * (2.0 * exchange * p + exchange)
    else:
        # each participant reads what it sends and writes what it receives
        memory_cycles = per(2.0 * ring_share * part_bytes, bandwidth)
    if rules.mesh_volume == "hops":
        words = per(2.0 * elements * hops * bits, network.channel_width_bits)
    else:
        words = per(ring_share * elements * bits, network.channel_width_bits)
    if rules.all_reduce_arithmetic == "hops":
        arithmetic = per(elements * hops * p * op.cycles, engine.lanes)
        combined = elements * hops * p
    else:
        arithmetic = per(0.5 * ring_share * elements * op.cycles, engine.lanes)
        combined = elements * (p - 1.0)
    repeats = p if rules.all_reduce_energy == "squared" else 1.0
    energy = (
        several
        * p
        * part_bytes
        * repeats
        * (memory.read_energy_pj_per_byte + memory.write_energy_pj_per_byte)
        + combined * op.energy_pj
    )
    return _Exchange(
        memory_cycles=memory_cycles,
        words=words,
        word_hops=p * words,
        hops=2.0 * hops,
        arithmetic_cycles=arithmetic,
        sent_bytes=p * ring_share * part_bytes,
        energy_pj=energy,
    )


def _gather(
    placement: Placement,
    memory: Memory,
    network: Network,
    link: Number,
    elements: Number,
    bits: float,
    participants: Number,
    hops: Number,
) -> _Exchange:
    rules = placement.conventions
    port = network.port_bandwidth_bytes_per_cycle
    p, part_bytes = participants, elements * (bits / 8.0)
    sender = minimum(link, port)
    receiver = minimum(link, network.num_ports * port, memory.child_bandwidth_bytes_per_cycle)
    received = (p - 1.0) * part_bytes
    memory_cycles = maximum(per(part_bytes, sender) * minimum(hops, 1.0), per(received, receiver))
    tiles = hops if rules.mesh_volume == "hops" else p - 1.0
    words = per(tiles * elements * bits, network.channel_width_bits)
    energy = received * (memory.read_energy_pj_per_byte + memory.write_energy_pj_per_byte)
    return _Exchange(
        memory_cycles=memory_cycles,
        words=words,
        word_hops=0.5 * hops * words,
        hops=hops,
        arithmetic_cycles=0.0,
        sent_bytes=received,
        energy_pj=energy,
    )
