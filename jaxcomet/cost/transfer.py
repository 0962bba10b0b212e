"""Time of one move of a tile between a memory and its children.

Memory part (docs/equations.md, 1.1): ``max(ceil(k s b / bw_parent), ceil(s b / bw_child))`` with k
tile copies that the parent's port handles, s elements of b bytes per child. Mesh part (1.2), after
HISIM (doi:10.1109/TCAD.2025.3531348 as used by COMET): hops times hop latency plus words through a
channel. Between a buffer and an engine there is no mesh.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from jax.tree_util import register_dataclass

from jaxcomet.arith import Number, ceil, floor, maximum, minimum, per, product, times_rate
from jaxcomet.cost.compute import call_elements
from jaxcomet.cost.conventions import Conventions
from jaxcomet.cost.placement import Move, Placement
from jaxcomet.hardware.machine import Network


def _static() -> Any:
    return dataclasses.field(metadata={"static": True})


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class MoveTime:
    """One move and what it takes.

    Attributes:
      tensor: what moves.
      direction: ``fill`` or ``drain``.
      parent: memory above.
      child: memory or engine below.
      merged: equal tiles of several children pass the parent's port once.
      tile_elements: elements of one child's tile.
      element_bytes: bytes per element.
      distinct: different tiles among the children.
      children: children that one parent serves.
      copies: tile copies that the parent's port handles.
      parent_bandwidth_bytes_per_cycle: at which it does.
      child_bandwidth_bytes_per_cycle: at which one child takes or gives its tile.
      hops: hops through the mesh to the farthest child.
      words: channel words that follow each other.
      memory_cycles: time at the ports.
      mesh_cycles: time in the mesh.
      cycles: time of the move.
    """

    tensor: str = _static()
    direction: str = _static()
    parent: str = _static()
    child: str = _static()
    merged: bool = _static()
    tile_elements: Number
    element_bytes: Number
    distinct: Number
    children: Number
    copies: Number
    parent_bandwidth_bytes_per_cycle: Number
    child_bandwidth_bytes_per_cycle: Number
    hops: Number
    words: Number
    memory_cycles: Number
    mesh_cycles: Number
    cycles: Number

    @property
    def pattern(self) -> str:
        """Implicit collective of a single mapping's move: broadcast, scatter, gather or none."""
        if float(self.children) == 1.0:
            return "none"
        if self.direction == "drain":
            return "gather"
        return "broadcast" if float(self.distinct) == 1.0 else "scatter"


def mesh_hops(x: Number, y: Number) -> Number:
    """Hops across an x by y mesh: (x - 1) + (y - 1)."""
    return (x - 1.0) + (y - 1.0)


def mesh_words(
    tile_elements: Number,
    bits: Number,
    tiles: Number,
    hops: Number,
    network: Network,
    rules: Conventions,
) -> Number:
    """Words of the channel width that follow each other through the busiest channel."""
    times = hops if rules.mesh_volume == "hops" else tiles * minimum(hops, 1.0)
    return per(tile_elements * times * bits, network.channel_width_bits)


def mesh_time(hops: Number, words: Number, network: Network, rules: Conventions) -> Number:
    """Cycles in the mesh, not rounded."""
    if rules.mesh_queuing == "per-word":
        return hops * network.hop_latency_cycles + words * network.queuing_delay_cycles
    return hops * (network.hop_latency_cycles + network.queuing_delay_cycles) + words


def move_time(placement: Placement, move: Move) -> MoveTime:
    """What one move of a tile takes; see the module docstring."""
    machine, rules = placement.machine, placement.conventions
    parent = machine.memories[move.parent]
    elements = placement.child_tile(move)
    element_bytes = move.bits / 8.0
    if placement.delivered_again(move):
        elements = call_elements(placement, move.site)
    elif move.to_engine:
        elements = product([elements, placement.passes(move)])
    tile_bytes = elements * element_bytes
    if move.to_engine:
        port = machine.engines[move.child].ports[move.parent]
        bandwidth = minimum(parent.child_bandwidth_bytes_per_cycle, port.bandwidth_bytes_per_cycle)
        cycles = ceil(per(tile_bytes, bandwidth))
        return MoveTime(
            tensor=move.tensor,
            direction=move.direction,
            parent=move.parent,
            child=move.child,
            merged=True,
            tile_elements=elements,
            element_bytes=element_bytes,
            distinct=1.0,
            children=1.0,
            copies=1.0,
            parent_bandwidth_bytes_per_cycle=bandwidth,
            child_bandwidth_bytes_per_cycle=bandwidth,
            hops=0.0,
            words=0.0,
            memory_cycles=cycles,
            mesh_cycles=0.0,
            cycles=cycles,
        )
    child = machine.memories[move.child]
    network = child.network
    assert network is not None
    assert child.parent_bandwidth_bytes_per_cycle is not None
    spread = placement.spread(move)
    copies = spread.distinct
    merged = _merged(placement, move, network)
    if not merged:
        copies = product([copies, spread.duplicates])
    ports = maximum(1.0, minimum(spread.distinct, network.num_ports))
    bandwidth = minimum(
        parent.child_bandwidth_bytes_per_cycle,
        times_rate(ports, network.port_bandwidth_bytes_per_cycle),
    )
    child_bandwidth = minimum(
        child.parent_bandwidth_bytes_per_cycle, network.port_bandwidth_bytes_per_cycle
    )
    memory_cycles = maximum(
        ceil(per(product([copies, tile_bytes]), bandwidth)), ceil(per(tile_bytes, child_bandwidth))
    )
    hops = mesh_hops(spread.x, spread.y)
    words = mesh_words(elements, float(move.bits), copies, hops, network, rules)
    if rules.mesh_queuing == "per-word":
        mesh_cycles = floor(mesh_time(hops, words, network, rules))
    else:
        mesh_cycles = ceil(mesh_time(hops, words, network, rules))
    serial = rules.staging == "serial" or move.drain_rule == "last-step"
    cycles = memory_cycles + mesh_cycles if serial else maximum(memory_cycles, mesh_cycles)
    return MoveTime(
        tensor=move.tensor,
        direction=move.direction,
        parent=move.parent,
        child=move.child,
        merged=merged,
        tile_elements=elements,
        element_bytes=element_bytes,
        distinct=spread.distinct,
        children=product([spread.x, spread.y]),
        copies=copies,
        parent_bandwidth_bytes_per_cycle=bandwidth,
        child_bandwidth_bytes_per_cycle=child_bandwidth,
        hops=hops,
        words=words,
        memory_cycles=memory_cycles,
        mesh_cycles=mesh_cycles,
        cycles=cycles,
    )


def _merged(placement: Placement, move: Move, network: Network) -> bool:
    """Whether equal tiles of several children pass the parent's port once."""
    if move.direction == "fill":
        return network.broadcast
    return network.reduction or placement.already_reduced(move)
