"""Time and energy of the explicit collectives of a mapping.

The one idea: one execution is priced by a closed form of the mesh (algorithm ``mesh``,
docs/equations.md, 3) or by the steps of an algorithm on that mesh (docs/collectives.md); ``auto``
takes the fastest. It is never hidden by computing. All participants hold a part of equal size.

Left out: moving a part between the memories of two levels of a hierarchical collective.
"""

import dataclasses
from dataclasses import dataclass

from jax.tree_util import register_dataclass

from jaxcomet.arith import Number, ceil, floor, maximum, per, product
from jaxcomet.cost.exchange import algorithms, chosen, pick, works_of
from jaxcomet.cost.mesh_collective import Between, mesh_need
from jaxcomet.cost.placement import Placement
from jaxcomet.cost.router import mesh_energy_pj
from jaxcomet.cost.transfer import mesh_time
from jaxcomet.hardware.machine import VectorOp
from jaxcomet.mapping import Collective, MappingError, Ranks

COMBINING = ("reduce", "reduce_scatter", "all_reduce")
"""Kinds that combine, by the function that their node names."""


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class CollectiveCost:
    """One explicit collective.

    Attributes:
      kind: kind of collective.
      tensor: what is exchanged.
      memory: where the participants hold it (those of the innermost level).
      names: the algorithms that were compared.
      choice: position in `names` of the fastest one.
      participants: how many take part in one exchange.
      part_elements: elements of one participant's part.
      part_bytes: the same in bytes.
      steps: steps of the algorithm; of ``mesh`` the hops.
      memory_cycles: time at the memories' links, one execution; of an algorithm the time of the
        bytes, wherever they are slowest.
      mesh_cycles: time in the mesh; of an algorithm that of its hops.
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
    names: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    choice: Number
    participants: Number
    part_elements: Number
    part_bytes: Number
    steps: Number
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
    def algorithm(self) -> str:
        """The algorithm of a single mapping (the first of a batch)."""
        return self.algorithm_at(0)

    def algorithm_at(self, index: int) -> str:
        """The algorithm of one mapping of a batch."""
        return chosen(self.names, self.choice, index)

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


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class _Priced:
    """One execution by one algorithm."""

    steps: Number
    memory_cycles: Number
    mesh_cycles: Number
    arithmetic_cycles: Number
    cycles: Number
    sent_bytes: Number
    energy_pj: Number
    mesh_energy_pj: Number


def check_collective(placement: Placement, node: Collective) -> None:
    """Refuses a collective that cannot be.

    Raises:
      MappingError: an algorithm that the kind lacks on a mesh, levels without ``hierarchical``, a
        level's memory that is not there or has no peer links, a missing function, a width below 1.
    """
    head = f"machine {placement.machine.name}: {node.kind} of {node.tensor}"
    for name in (node.memory, *(ranks.memory for ranks in node.outer)):
        memory = placement.machine.memories.get(name)
        if memory is None:
            known = ", ".join(placement.machine.memories)
            raise MappingError(f"{head}: got memory {name!r}; expected one of {known}")
        if memory.network is None or memory.link_bandwidth_bytes_per_cycle is None:
            raise MappingError(f"{head}: memory.{name} has no peer links; give it link_bandwidth")
    allowed = _allowed(node)
    if node.algorithm != "auto" and node.algorithm not in allowed:
        levels = f" over {1 + len(node.outer)} levels" if node.outer else ""
        wanted = f"auto or one of {', '.join(allowed)}" if allowed else "one level"
        raise MappingError(f"{head}: got algorithm {node.algorithm!r}{levels}; expected {wanted}")
    if not allowed:
        raise MappingError(f"{head}: got {1 + len(node.outer)} levels; expected one")
    if node.kind in COMBINING and node.function is None:
        raise MappingError(f"{head}: got no function; expected what combines, e.g. add or max")
    if node.bits is not None and node.bits < 1:
        raise MappingError(f"{head}: got bits {node.bits}; expected at least 1")


def _allowed(node: Collective) -> tuple[str, ...]:
    """The algorithms of a collective, in the order that decides a tie."""
    if node.outer:
        return () if node.kind == "permute" else ("hierarchical",)
    return ("mesh", *algorithms(node.kind, "mesh"))


def _width(placement: Placement, node: Collective) -> float:
    """Bits per element on the way: as said, or as the tensor's producer or first reader has it."""
    if node.bits is not None:
        return float(node.bits)
    workload = placement.workload
    operation = workload.producer(node.tensor) or workload.consumers(node.tensor)[0]
    return float(operation.bits)


def _between(
    placement: Placement, node: Collective, ranks: Ranks, op: VectorOp | None, elements: Number
) -> Between:
    memory = placement.machine.memories[ranks.memory]
    assert memory.network is not None  # see `check_collective`
    assert memory.link_bandwidth_bytes_per_cycle is not None
    return Between(
        rules=placement.conventions,
        memory=memory,
        network=memory.network,
        link=memory.link_bandwidth_bytes_per_cycle,
        engine=None if op is None else placement.vector_engine,
        op=op,
        x=placement.count(ranks.x),
        y=placement.count(ranks.y),
        elements=elements,
        bits=_width(placement, node),
    )


def collective_cost(
    placement: Placement, node: Collective, executions: Number, groups: Number
) -> CollectiveCost:
    """What a collective takes; see the module docstring."""
    elements = product([placement.steps(loop) for loop in node.tile])
    op = None
    if node.function is not None and node.kind in COMBINING:
        assert placement.vector_engine is not None
        op = placement.vector_engine.ops[node.function]
    ranks = (Ranks(node.memory, node.x, node.y), *node.outer)
    levels = tuple(_between(placement, node, r, op, elements) for r in ranks)
    names = _allowed(node) if node.algorithm == "auto" else (node.algorithm,)
    priced = [
        _by_mesh(placement, node.kind, levels[0])
        if name == "mesh"
        else _by_steps(placement, node.kind, name, levels)
        for name in names
    ]
    best, choice = pick(priced, [p.cycles for p in priced])
    return CollectiveCost(
        kind=node.kind,
        tensor=node.tensor,
        memory=node.memory,
        names=names,
        choice=choice,
        participants=product([b.participants for b in levels]),
        part_elements=elements,
        part_bytes=levels[0].part_bytes,
        executions=executions,
        groups=groups,
        **{f.name: getattr(best, f.name) for f in dataclasses.fields(_Priced)},
    )


def _by_mesh(placement: Placement, kind: str, b: Between) -> _Priced:
    need, rules = mesh_need(kind, b), placement.conventions
    mesh_cycles = mesh_time(need.hops, need.words, b.network, rules)
    mesh_pj = mesh_energy_pj(
        placement.router(b.memory),
        b.network,
        x=b.x,
        y=b.y,
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
    return _Priced(
        steps=need.hops,
        memory_cycles=need.memory_cycles,
        mesh_cycles=mesh_cycles,
        arithmetic_cycles=need.arithmetic_cycles,
        cycles=cycles,
        sent_bytes=need.sent_bytes,
        energy_pj=need.energy_pj + mesh_pj,
        mesh_energy_pj=mesh_pj,
    )


# kinds whose size is that of the whole, of which each participant holds a part
_WHOLE = ("gather", "scatter", "all_gather")


def _by_steps(
    placement: Placement, kind: str, algorithm: str, levels: tuple[Between, ...]
) -> _Priced:
    everyone = product([b.participants for b in levels])
    part = levels[0].part_bytes
    size = everyone * part if kind in _WHOLE else part
    works = works_of(kind, size, tuple(b.fabric for b in levels), algorithm)
    memory_pj: Number = 0.0
    mesh_pj: Number = 0.0
    for b, work in zip(levels, works, strict=True):
        sent = b.memory.read_energy_pj_per_byte + b.memory.write_energy_pj_per_byte
        memory_pj = memory_pj + work.sent_bytes * sent
        if b.op is not None:
            memory_pj = memory_pj + work.combined_bytes / (b.bits / 8.0) * b.op.energy_pj
        width = b.network.channel_width_bits
        one = mesh_energy_pj(
            placement.router(b.memory),
            b.network,
            x=b.x,
            y=b.y,
            hops=work.hops,
            words=per(work.link_bytes * 8.0, width),
            word_hops=per(work.hop_bytes * 8.0, width),
            rules=placement.conventions,
        )
        # the bytes are those of all groups; the program's form is that of one mesh
        of_one = placement.conventions.router_power == "watt-cycle"
        mesh_pj = mesh_pj + (one * (everyone / b.participants) if of_one else one)
    total = sum(works[1:], start=works[0])
    return _Priced(
        steps=total.steps,
        memory_cycles=total.bandwidth,
        mesh_cycles=total.latency,
        arithmetic_cycles=total.arithmetic,
        cycles=ceil(total.latency + total.bandwidth) + ceil(total.arithmetic),
        sent_bytes=total.sent_bytes,
        energy_pj=memory_pj + mesh_pj,
        mesh_energy_pj=mesh_pj,
    )
