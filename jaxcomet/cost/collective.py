"""Time and energy of explicit collectives.

One execution moves one part per participant. All-reduce (docs/equations.md, 3.1) and gather (3.2)
over a mesh of x by y participants, each holding `s` elements; time is memory + mesh + arithmetic
and is never hidden by computing.
"""

import dataclasses
from dataclasses import dataclass

from jax.tree_util import register_dataclass

from jaxcomet.arith import Number, ceil, floor, maximum, minimum, product
from jaxcomet.cost.placement import Placement
from jaxcomet.cost.router import mesh_energy_pj
from jaxcomet.cost.transfer import mesh_hops, mesh_time
from jaxcomet.hardware.machine import Memory, Network, VectorEngine
from jaxcomet.mapping import Collective, MappingError


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
    """What a collective takes; see the module docstring.

    Raises:
      MappingError: the memory has no peer links, or no vector engine can combine.
    """
    machine, rules = placement.machine, placement.conventions
    memory = machine.memories[node.memory]
    network = memory.network
    link = memory.link_bandwidth_bytes_per_cycle
    if network is None or link is None:
        raise MappingError(
            f"machine {machine.name}: memory.{memory.name} has no peer links, which {node.kind} of "
            f"{node.tensor} needs; "
            f"give it link_bandwidth"
        )
    x, y = placement.count(node.x), placement.count(node.y)
    participants = product([x, y])
    elements = product([placement.steps(loop) for loop in node.tile])
    bits = float(placement.workload.producer(node.tensor).bits)  # pyright: ignore[reportOptionalMemberAccess]
    part_bytes = elements * (bits / 8.0)
    hops = mesh_hops(x, y)
    cost = _all_reduce if node.kind == "all_reduce" else _gather
    memory_cycles, words, hop_count, arithmetic, sent_bytes, energy = cost(
        placement, node, memory, network, elements, bits, participants, hops
    )
    mesh_cycles = mesh_time(hop_count, words, network, rules)
    mesh_pj = mesh_energy_pj(
        machine.router, network, x=x, y=y, hops=hop_count, words=words, rules=rules
    )
    if rules.collective_staging == "serial":
        cycles = ceil(memory_cycles) + floor(mesh_cycles + arithmetic)
    else:
        cycles = maximum(ceil(memory_cycles), ceil(mesh_cycles)) + ceil(arithmetic)
    return CollectiveCost(
        kind=node.kind,
        tensor=node.tensor,
        memory=node.memory,
        participants=participants,
        part_elements=elements,
        part_bytes=part_bytes,
        memory_cycles=memory_cycles,
        mesh_cycles=mesh_cycles,
        arithmetic_cycles=arithmetic,
        cycles=cycles,
        sent_bytes=sent_bytes,
        energy_pj=energy + mesh_pj,
        mesh_energy_pj=mesh_pj,
        executions=executions,
        groups=groups,
    )


_Parts = tuple[Number, Number, Number, Number, Number, Number]


def _vector_engine(placement: Placement) -> VectorEngine:
    for _, engine in sorted(placement.machine.engines.items()):
        if isinstance(engine, VectorEngine):
            return engine
    raise MappingError(
        f"machine {placement.machine.name}: has no vector engine to combine partial results"
    )


def _all_reduce(
    placement: Placement,
    node: Collective,
    memory: Memory,
    network: Network,
    elements: Number,
    bits: float,
    participants: Number,
    hops: Number,
) -> _Parts:
    rules = placement.conventions
    engine = _vector_engine(placement)
    if node.function not in engine.ops:
        raise MappingError(
            f"engine {engine.name}: cannot combine with {node.function!r}; it runs "
            f"{', '.join(sorted(engine.ops))}"
        )
    op = engine.ops[node.function]
    bandwidth = minimum(
        memory.link_bandwidth_bytes_per_cycle, network.port_bandwidth_bytes_per_cycle
    )  # pyright: ignore[reportArgumentType]
    p, part_bytes = participants, elements * (bits / 8.0)
    ring_share = 2.0 * (p - 1.0) / p
    if rules.all_reduce_memory == "squared":
        exchange = part_bytes * p / bandwidth
        memory_cycles = 2.0 * exchange * p + exchange
    else:
        # each participant reads what it sends and writes what it receives
        memory_cycles = 2.0 * ring_share * part_bytes / bandwidth
    if rules.mesh_volume == "hops":
        words = 2.0 * elements * hops * bits / network.channel_width_bits
    else:
        words = ring_share * elements * bits / network.channel_width_bits
    if rules.all_reduce_arithmetic == "hops":
        arithmetic = elements * hops * p * op.cycles / engine.lanes
        combined = elements * hops * p
    else:
        arithmetic = elements * (p - 1.0) / p * op.cycles / engine.lanes
        combined = elements * (p - 1.0)
    repeats = p if rules.all_reduce_energy == "squared" else 1.0
    energy = (
        p
        * part_bytes
        * repeats
        * (memory.read_energy_pj_per_byte + memory.write_energy_pj_per_byte)
        + combined * op.energy_pj
    )
    return memory_cycles, words, 2.0 * hops, arithmetic, p * ring_share * part_bytes, energy


def _gather(
    placement: Placement,
    node: Collective,
    memory: Memory,
    network: Network,
    elements: Number,
    bits: float,
    participants: Number,
    hops: Number,
) -> _Parts:
    rules = placement.conventions
    link, port = memory.link_bandwidth_bytes_per_cycle, network.port_bandwidth_bytes_per_cycle
    p, part_bytes = participants, elements * (bits / 8.0)
    sender = minimum(link, port)  # pyright: ignore[reportArgumentType]
    receiver = minimum(link, network.num_ports * port, memory.child_bandwidth_bytes_per_cycle)  # pyright: ignore[reportArgumentType]
    received = (p - 1.0) * part_bytes
    memory_cycles = maximum(part_bytes / sender * minimum(hops, 1.0), received / receiver)
    tiles = hops if rules.mesh_volume == "hops" else p - 1.0
    words = tiles * elements * bits / network.channel_width_bits
    energy = received * (memory.read_energy_pj_per_byte + memory.write_energy_pj_per_byte)
    return memory_cycles, words, hops, 0.0 * elements, received, energy
