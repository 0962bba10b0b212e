"""Occupancy: bytes that each memory must hold at once, against its capacity.

The one idea: inputs and outputs stream through a memory and hold their tile for the whole run
(twice where the next one is prefetched); an intermediate holds its tile from where it is made to
its last use. What is handed from one branch to the next under the same node is needed for all steps
of those branches, not for one (docs/equations.md, 6).
"""

import dataclasses
import itertools
from dataclasses import dataclass

from jax.tree_util import register_dataclass

from jaxcomet.arith import Number, maximum, minimum, product
from jaxcomet.cost.placement import Placement, Site
from jaxcomet.hardware.machine import Memory
from jaxcomet.mapping import Group, Node, Spatial, Temporal, children, walk


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Held:
    """What a tensor holds in a memory at the fullest moment that it is part of.

    Attributes:
      tensor: its name.
      elements: elements of the tile.
      element_bytes: bytes per element.
      copies: 2 where the next tile is prefetched, else 1.
    """

    tensor: str = dataclasses.field(metadata={"static": True})
    elements: Number
    element_bytes: Number
    copies: Number

    @property
    def total_bytes(self) -> Number:
        """Bytes of all copies."""
        return self.elements * self.element_bytes * self.copies


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """Use of one memory.

    Attributes:
      memory: its name.
      capacity_bytes: bytes of one instance; None for an unlimited memory.
      needed_bytes: bytes at the fullest moment.
      moments: (operation, what is held while it runs), in order.
    """

    memory: str = dataclasses.field(metadata={"static": True})
    capacity_bytes: Number | None
    needed_bytes: Number
    moments: tuple[tuple[Held, ...], ...]
    operations: tuple[str, ...] = dataclasses.field(metadata={"static": True})

    @property
    def excess_bytes(self) -> Number:
        """Bytes too many; 0 where everything fits."""
        if self.capacity_bytes is None:
            return 0.0 * self.needed_bytes
        return maximum(0.0, self.needed_bytes - self.capacity_bytes)

    @property
    def share(self) -> Number | None:
        """Needed / capacity; None for an unlimited memory."""
        return None if self.capacity_bytes is None else self.needed_bytes / self.capacity_bytes


def _common(first: Site, second: Site) -> Node:
    """Innermost node above both."""
    shared = [a for a, b in zip(first.above, second.above, strict=False) if a is b]
    return shared[-1]


def _bits(placement: Placement, site: Site, tensor: str, level: int) -> float:
    if level == 0:
        return float(placement.workload.tensor(tensor).bits)
    last = level == len(placement.machine.levels) - 1
    if placement.conventions.intermediate_bits == "one-byte" and not last:
        return 8.0
    return float(site.operation.bits)


def _stream_copies(placement: Placement, site: Site, tensor: str, memory: Memory) -> Number:
    """Places a streamed tensor needs: 2 where it moves more than once and may be prefetched."""
    rules = placement.conventions
    if rules.double_buffer == "ignored" or rules.overlap == "none" or not memory.double_buffered:
        return 1.0
    level = placement.machine.level_index(memory.level)
    if any(
        isinstance(a, Temporal) and tensor in a.rotates and a.level == memory.level
        for a in site.above
    ):
        return 2.0  # one is handed on while the next arrives
    owner = placement.owner(site, tensor, level - 1)
    end = next(i for i, a in enumerate(site.above) if a is owner) + 1
    _, moves, _ = placement.transitions(tensor, placement.nest_above(site.above[:end]))
    return minimum(moves, 2.0)


def _step_tile(placement: Placement, site: Site, tensor: str, level: int) -> Number:
    """Tile of one unit of a level in one step of the level above."""
    owner = placement.owner(site, tensor, level - 1)
    assert owner is not None  # see `legality.check`
    return product(list(placement.tile(tensor, site, owner, level).values()))


def _kept_tile(placement: Placement, maker: Site, user: Site, tensor: str, level: int) -> Number:
    """Tile that is kept between two engine calls: all that lies below their common node."""
    node = _common(maker, user)
    return product(list(placement.tile(tensor, maker, node, level).values()))


def occupancy(placement: Placement, name: str) -> Occupancy:
    """Bytes that one memory must hold at once.

    Args:
      placement: the mapping.
      name: the memory.

    Returns:
      Its use; the fullest moment counts.
    """
    memory = placement.machine.memories[name]
    level = placement.machine.level_index(memory.level)
    moments: list[tuple[Held, ...]] = []
    operations: list[str] = []
    for stage in placement.parts:
        if level == 0:
            tensors = dict.fromkeys(
                t
                for s in stage
                for t in (*s.operation.inputs, s.operation.output)
                if placement.home_level(t) == 0
            )
            held = tuple(
                Held(
                    tensor=t,
                    elements=placement.workload.elements(t),
                    element_bytes=placement.workload.tensor(t).bits / 8.0,
                    copies=1.0,
                )
                for t in tensors
            )
            moments.append(held)
            operations.append("+".join(s.operation.name for s in stage))
            continue
        live = _by_step if placement.conventions.live_ranges == "step" else _by_life
        for operation, held in live(placement, stage, memory, level):
            if held:
                moments.append(held)
                operations.append(operation)
    needed = [sum((h.total_bytes for h in held[1:]), start=held[0].total_bytes) for held in moments]
    return Occupancy(
        memory=name,
        capacity_bytes=memory.capacity_bytes,
        needed_bytes=maximum(*needed) if needed else 0.0,
        moments=tuple(moments),
        operations=tuple(operations),
    )


def _touched(placement: Placement, site: Site, name: str, level: int) -> list[str]:
    """Tensors of an engine call that pass or live in a memory."""
    found = []
    for tensor in dict.fromkeys((*site.operation.inputs, site.operation.output)):
        path = placement.machine.path(placement.buffer(site.operation, tensor))
        if level < len(path) and path[level] == name:
            found.append(tensor)
    return found


def _by_step(
    placement: Placement, stage: tuple[Site, ...], memory: Memory, level: int
) -> list[tuple[str, tuple[Held, ...]]]:
    """As the program counts: one step's tiles; above the cores all tensors of the step together."""
    last = level == len(placement.machine.levels) - 1
    per_site: list[tuple[str, tuple[Held, ...]]] = []
    seen: dict[str, Held] = {}
    for site in stage:
        held = []
        for tensor in _touched(placement, site, memory.name, level):
            if not last and placement.home_level(tensor) > level:
                continue
            entry = Held(
                tensor=tensor,
                elements=_step_tile(placement, site, tensor, level),
                element_bytes=_bits(placement, site, tensor, level) / 8.0,
                copies=_stream_copies(placement, site, tensor, memory)
                if placement.home_level(tensor) == 0
                else 1.0,
            )
            held.append(entry)
            seen.setdefault(tensor, entry)
        per_site.append((site.operation.name, tuple(held)))
    if last:
        return per_site
    return [("+".join(s.operation.name for s in stage), tuple(seen.values()))]


def _by_life(
    placement: Placement, stage: tuple[Site, ...], memory: Memory, level: int
) -> list[tuple[str, tuple[Held, ...]]]:
    """Streams for the whole stage, intermediates from their maker to their last use.

    Stages of a pipeline run at the same time, on different steps: what one hands to the next is
    held twice, and the fullest moment is looked for among all combinations of their operations.
    """
    streams: dict[str, Held] = {}
    lives: list[tuple[int, int, Held]] = []
    order = {s.operation.name: i for i, s in enumerate(stage)}
    made: set[str] = set()
    overwrites = _overwrites(placement, stage, level)
    for index, site in enumerate(stage):
        for tensor in _touched(placement, site, memory.name, level):
            home = placement.home_level(tensor)
            size = _bits(placement, site, tensor, level) / 8.0
            step = _step_tile(placement, site, tensor, level)
            if home == 0 and tensor in overwrites:
                continue
            if home == 0:
                copies = _stream_copies(placement, site, tensor, memory)
                streams.setdefault(
                    tensor, Held(tensor=tensor, elements=step, element_bytes=size, copies=copies)
                )
            elif home < level:
                entry = Held(tensor=tensor, elements=step, element_bytes=size, copies=1.0)
                lives.append((index, index, entry))
            elif home > level and placement.drain_rule(site, tensor, level, home) == "every-step":
                users = [order[s.operation.name] for s in stage if tensor in s.operation.inputs]
                entry = Held(tensor=tensor, elements=step, element_bytes=size, copies=1.0)
                lives.append((index, max(users, default=index), entry))
            elif home == level and tensor not in made:
                made.add(tensor)
                users = [s for s in stage if tensor in s.operation.inputs]
                end = max((order[s.operation.name] for s in users), default=index)
                start, end = _span(placement, stage, tensor, index, end)
                taken_by = [r for r, t in overwrites.items() if t == tensor]
                if taken_by and placement.home_level(taken_by[0]) == level and end > start:
                    end -= 1
                widest = max([size, *(_bits(placement, s, tensor, level) / 8.0 for s in users)])
                kept = [_kept_tile(placement, site, s, tensor, level) for s in users] or [step]
                handed_on = any(_pipeline(_common(site, s)) for s in users)
                entry = Held(
                    tensor=tensor,
                    elements=maximum(*kept),
                    element_bytes=widest,
                    copies=2.0 if handed_on else 1.0,
                )
                lives.append((start, end, entry))
                lives += _gathered(placement, site, users, tensor, level, widest, order)
    moments = []
    for indices in _concurrent(stage):
        live = {id(h): h for i in indices for start, end, h in lives if start <= i <= end}
        if streams or live:
            name = "+".join(stage[i].operation.name for i in indices)
            moments.append((name, (*streams.values(), *live.values())))
    return moments


def _span(
    placement: Placement, stage: tuple[Site, ...], tensor: str, start: int, end: int
) -> tuple[int, int]:
    """Operations during which a value is held; a running value is, in all of its loop."""
    if not _is_running(stage, tensor):
        return start, end
    site = next(s for s in stage if s.operation.output == tensor)
    carrying = [
        a
        for a in site.above
        if isinstance(a, Temporal) and any(x.dim in site.operation.carried for x in a.loops)
    ]
    if not carrying:
        return start, end
    inside = placement.sites_below(carrying[0])
    positions = [i for i, s in enumerate(stage) if any(s is x for x in inside)]
    return min(start, *positions), max(end, *positions)


def _is_running(stage: tuple[Site, ...], tensor: str) -> bool:
    """Whether a value of the block before is read: by its maker, or by an operation before it."""
    makers = [i for i, s in enumerate(stage) if s.operation.output == tensor]
    return any(
        tensor in s.operation.inputs and s.operation.carried
        for s in stage[: max(makers, default=-1) + 1]
    )


def _overwrites(placement: Placement, stage: tuple[Site, ...], level: int) -> dict[str, str]:
    """Results that take the place of an operand that nobody reads later: result -> operand."""
    if placement.conventions.in_place == "never":
        return {}
    found: dict[str, str] = {}
    for index, site in enumerate(stage):
        op = site.operation
        if op.kind != "map" or placement.home_level(op.output) not in (0, level):
            continue
        if _is_running(stage, op.output):
            continue
        dims = placement.workload.tensor(op.output).dims
        for tensor in op.inputs:
            later = any(tensor in s.operation.inputs for s in stage[index + 1 :])
            same = placement.workload.tensor(tensor).dims == dims
            makers = [s for s in stage if s.operation.output == tensor]
            if later or not same or not makers or placement.home_level(tensor) != level:
                continue
            if _is_running(stage, tensor):
                continue
            if all(m.operation.bits >= op.bits for m in makers) and tensor not in found.values():
                found[op.output] = tensor
                break
    return found


def _pipeline(node: Node) -> bool:
    return isinstance(node, Group) and node.binding == "pipelined"


def _together(node: Node) -> bool:
    return isinstance(node, Group) and node.binding != "sequential"


def _concurrent(stage: tuple[Site, ...]) -> list[tuple[int, ...]]:
    """Positions of operations that may run together: one alone, or one of each sibling."""
    pipeline = next((a for s in stage for a in s.above if _together(a)), None)
    if pipeline is None:
        return [(i,) for i in range(len(stage))]
    by_child = [
        [i for i, s in enumerate(stage) if any(x is child for x in (*s.above, s.compute))]
        for child in children(pipeline)
    ]
    outside = [(i,) for i, s in enumerate(stage) if not any(a is pipeline for a in s.above)]
    return [*itertools.product(*(c for c in by_child if c)), *outside]


def _gathered(
    placement: Placement,
    maker: Site,
    users: list[Site],
    tensor: str,
    level: int,
    size: float,
    order: dict[str, int],
) -> list[tuple[int, int, Held]]:
    """The further tile that a gathered tensor has on the units that read it."""

    def spread(site: Site) -> list[Node]:
        return [a for a in site.above if isinstance(a, Spatial)]

    far = [s for s in users if len(spread(s)) != len(spread(maker))]
    if not far:
        return []
    step = _step_tile(placement, far[0], tensor, level)
    entry = Held(tensor=tensor, elements=step, element_bytes=size, copies=1.0)
    positions = [order[s.operation.name] for s in far]
    return [(min(positions), max(positions), entry)]


def spatial_use(placement: Placement) -> dict[str, tuple[Number, Number, Number, Number]]:
    """(used x, used y, mesh x, mesh y) of the widest spread over each level, by level."""
    used: dict[str, tuple[Number, Number]] = {}
    for node, _ in walk(placement.mapping.tree):
        if isinstance(node, Spatial):
            x = product([placement.steps(loop) for loop in node.x])
            y = product([placement.steps(loop) for loop in node.y])
            old = used.get(node.level, (1.0, 1.0))
            used[node.level] = (maximum(old[0], x), maximum(old[1], y))
    return {
        name: (x, y, placement.machine.level(name).mesh_x, placement.machine.level(name).mesh_y)
        for name, (x, y) in used.items()
    }
