"""Whether a mapping computes what its workload means.

The one idea: a value may be used only where it is, once it is there, and once it is whole. Five
rules (docs/legality.md), read off the tree:

1. order: an operand is made before it is read, unless it is a running value of a carried operation;
2. loops: no loop over a reduced dimension encloses both the reduction and a use of its result,
   unless the user is carried along that dimension (online softmax);
3. units: partial results of several units are combined before anything that is not linear in them;
4. place: an intermediate is read in the units, and through the memory, in which it was handed over;
5. siblings at work in parallel do not need each other's results.

A value that is reduced and then read again (a row maximum, then the exponentials) therefore lies
whole between the two: what is kept is all of it below the node that the two share, which the
occupancy charges. Where rules 2 and 3 depend on numbers (a loop of one step harms nobody), the
steps are kept: the mapping is legal where they are 1.
"""

import dataclasses
from dataclasses import dataclass

from jax.tree_util import register_dataclass

from jaxcomet.arith import Number, product
from jaxcomet.cost.collective import COMBINING, check_collective
from jaxcomet.cost.placement import Placement, Site
from jaxcomet.mapping import (
    Collective,
    Compute,
    Group,
    Loop,
    MappingError,
    Node,
    Spatial,
    Temporal,
    children,
    walk,
)


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Illegal:
    """Loops that break a rule unless they have one step.

    Attributes:
      reason: what is wrong.
      steps: product of the loops' steps; the mapping is legal where it is 1.
    """

    reason: str = dataclasses.field(metadata={"static": True})
    steps: Number


_REDISTRIBUTING = (
    "reduce",
    "reduce_scatter",
    "gather",
    "all_gather",
    "scatter",
    "broadcast",
    "all_to_all",
)


def illegal(placement: Placement) -> tuple[Illegal, ...]:
    """What breaks a rule unless it has one step; raises for what never can be executed.

    Raises:
      MappingError: an operand that is read before it is made, or in another place than it was
        handed over in, or beside its maker in a parallel group.
    """
    _check_order(placement)
    _check_places(placement)
    return (*_open_loops(placement), *_partial_uses(placement))


def _head(placement: Placement) -> str:
    return f"mapping {placement.mapping.strategy}"


def _makers(placement: Placement, tensor: str) -> list[Site]:
    return [s for s in placement.sites if s.operation.output == tensor]


def _check_order(placement: Placement) -> None:
    made: set[str] = set()
    produced = {s.operation.output for s in placement.sites}
    for site in placement.sites:
        for tensor in site.operation.inputs:
            running = bool(site.operation.carried)
            if tensor in made or running or tensor not in produced:
                continue
            raise MappingError(
                f"{_head(placement)}: {site.operation.name} reads {tensor} before it is made; put "
                "its maker before it"
            )
        made.add(site.operation.output)
    for node, _ in walk(placement.mapping.tree):
        if not (isinstance(node, Group) and node.binding == "parallel"):
            continue
        for child in children(node):
            inside = placement.sites_below(child)
            others = [s for s in placement.sites_below(node) if s not in inside]
            makes = {s.operation.output: s.operation.name for s in inside}
            for site in others:
                needed = [t for t in site.operation.inputs if t in makes]
                if needed:
                    raise MappingError(
                        f"{_head(placement)}: {site.operation.name} reads {needed[0]} of "
                        f"{makes[needed[0]]}, which runs beside it in a parallel group; bind them "
                        "sequential or pipelined"
                    )


def _check_places(placement: Placement) -> None:
    machine = placement.machine
    collectives = [n for n, _ in walk(placement.mapping.tree) if isinstance(n, Collective)]
    for tensor, home in placement.mapping.homes:
        level = machine.level_index(machine.memories[home].level)
        makers = _makers(placement, tensor)
        users = [s for s in placement.sites if tensor in s.operation.inputs]
        for site in (*makers, *users):
            path = machine.path(placement.buffer(site.operation, tensor))
            if level >= len(path) or path[level] != home:
                raise MappingError(
                    f"{_head(placement)}: {tensor} is handed over in {home}, which is not on its "
                    f"way to {site.operation.name} ({' > '.join(path)}); expected "
                    f"{' or '.join(path[: level + 1])}"
                )
        moved = any(c.tensor == tensor and c.kind in _REDISTRIBUTING for c in collectives)
        if level == 0 or moved or not makers:
            continue
        for user in users:
            there, here = _units(placement, makers[0], level), _units(placement, user, level)
            if there != here:
                raise MappingError(
                    f"{_head(placement)}: {tensor} is made by {makers[0].operation.name} on units "
                    f"spread by {_spelled(there)} and read in {home} by {user.operation.name} on "
                    f"units spread by {_spelled(here)}; spread them alike, or put a gather, "
                    f"broadcast or all_to_all of {tensor} between"
                )


def _units(placement: Placement, site: Site, level: int) -> tuple[tuple[Loop, ...], ...]:
    """Loops over the units down to a level, x and y of each node."""
    nodes = [
        a
        for a in site.above
        if isinstance(a, Spatial) and placement.machine.level_index(a.level) <= level
    ]
    return tuple(loops for a in nodes for loops in (a.x, a.y))


def _spelled(units: tuple[tuple[Loop, ...], ...]) -> str:
    names = [f for loops in units for loop in loops for f in loop.factors]
    return ", ".join(names) or "nothing"


def _missing(placement: Placement, site: Site) -> tuple[str, ...]:
    """Dimensions that an operation sums up or runs along: its result is not whole inside them."""
    op = site.operation
    out = placement.workload.tensor(op.output).dims
    dims = dict.fromkeys((*placement.workload.iteration_dims(op), *op.carried))
    return tuple(d for d in dims if d not in out or d in op.carried)


def _open_loops(placement: Placement) -> list[Illegal]:
    """Uses of a result inside a loop over a dimension that is still being reduced (rule 2)."""
    found: list[Illegal] = []
    for user in placement.sites:
        for tensor in dict.fromkeys(user.operation.inputs):
            for maker in _makers(placement, tensor):
                if maker is user:
                    continue
                shared = [a for a in user.above if any(a is b for b in maker.above)]
                for dim in _missing(placement, maker):
                    if dim in user.operation.carried:
                        continue
                    loops = [
                        x
                        for a in shared
                        if isinstance(a, Temporal)
                        for x in a.loops
                        if x.dim == dim
                    ]
                    if loops:
                        reason = (
                            f"{user.operation.name} reads {tensor} inside a loop over {dim}, along "
                            f"which {maker.operation.name} is not finished before the loop's end"
                        )
                        steps = product([placement.count(x.factors) for x in loops])
                        found.append(Illegal(reason=reason, steps=steps))
    return found


def _partial_uses(placement: Placement) -> list[Illegal]:
    """Uses of partial results of several units that were not combined (rule 3)."""
    tree = placement.mapping.tree
    events = [n for n, _ in walk(tree) if isinstance(n, Compute | Collective)]
    sites = {id(s.compute): s for s in placement.sites}
    partial: dict[str, frozenset[str]] = {}
    exchanged: dict[str, frozenset[str]] = {}
    running: dict[str, frozenset[str]] = {}
    found: dict[str, Illegal] = {}
    # running values are read before they are made: the second round knows what the first made
    for _ in range(2):
        found.clear()
        made: set[str] = set()
        for event in events:
            if isinstance(event, Collective):
                factors = {*event.x, *event.y}
                for rank in event.outer:
                    factors |= {*rank.x, *rank.y}
                if event.kind in COMBINING:
                    before = partial.get(event.tensor, frozenset())
                    partial[event.tensor] = before - factors
                    exchanged[event.tensor] = exchanged.get(event.tensor, frozenset()) | factors
                continue
            site = sites[id(event)]
            before = {
                t: (partial if t in made else running).get(t, frozenset())
                for t in site.operation.inputs
            }
            wrong, result = _through(placement, site, before, exchanged)
            for tensor, factors in wrong:
                reason = (
                    f"{site.operation.name} uses {tensor}, of which each unit along "
                    f"{', '.join(sorted(factors))} has a part only; put an all_reduce of {tensor} "
                    "before it"
                )
                found[reason] = Illegal(reason=reason, steps=placement.count(sorted(factors)))
            partial[site.operation.output] = running[site.operation.output] = result
            made.add(site.operation.output)
    for tensor, factors in partial.items():
        if factors and not placement.workload.consumers(tensor):
            reason = (
                f"result {tensor} is left in parts on the units along "
                f"{', '.join(sorted(factors))}; put a reduce or an all_reduce of {tensor} after "
                "its maker"
            )
            found[reason] = Illegal(reason=reason, steps=placement.count(sorted(factors)))
    return list(found.values())


def _through(
    placement: Placement,
    site: Site,
    partial: dict[str, frozenset[str]],
    exchanged: dict[str, frozenset[str]],
) -> tuple[list[tuple[str, frozenset[str]]], frozenset[str]]:
    """(operands that may not be partial but are, units over which the result is partial)."""
    op = site.operation
    nothing: frozenset[str] = frozenset()
    given = {t: partial.get(t, nothing) for t in dict.fromkeys(op.inputs) if t != op.output}
    union = frozenset(f for factors in given.values() for f in factors)
    wrong: list[tuple[str, frozenset[str]]] = []
    several = [t for t, factors in given.items() if factors]
    match op.function:
        case "mac" | "mul":
            wrong = [(t, given[t]) for t in several[1:]]
        case "div":
            wrong = [(t, given[t]) for t in several if t != op.inputs[0]]
        case "add" if op.kind == "map":
            wrong = [(t, given[t]) for t in several if given[t] != union]
            if several and len(several) < len(given):
                wrong = [(t, given[t]) for t in several]
        case "add":
            pass
        case _:
            wrong = [(t, given[t]) for t in several]
    if op.kind == "map":
        return wrong, union
    out = placement.workload.tensor(op.output).dims
    whole = frozenset(f for t in op.inputs for f in exchanged.get(t, nothing))
    own = frozenset(
        f
        for a in site.above
        if isinstance(a, Spatial)
        for x in (*a.x, *a.y)
        if x.dim not in out and x.dim in placement.workload.iteration_dims(op)
        for f in x.factors
    )
    return wrong, union | (own - whole - _combined_by_network(placement, site))


def _combined_by_network(placement: Placement, site: Site) -> frozenset[str]:
    """Factors of the units whose results a network adds up on their way to the home."""
    op = site.operation
    if op.function not in ("mac", "add"):
        return frozenset()
    home = placement.home_level(op.output)
    path = placement.machine.path(placement.buffer(op, op.output))
    found: set[str] = set()
    for node in site.above:
        if not isinstance(node, Spatial):
            continue
        level = placement.machine.level_index(node.level)
        network = placement.machine.memories[path[level]].network
        if level > home and network is not None and network.reduction:
            found |= {f for x in (*node.x, *node.y) for f in x.factors}
    return frozenset(found)


def check(placement: Placement) -> None:
    """Refuses a mapping that its machine cannot run for lack of a part.

    What depends on numbers (bytes, units) is not refused but reported by the cost.

    Raises:
      MappingError: no engine of the needed kind, an operation that the vector engine's table lacks,
        a collective that cannot be (see `check_collective`), a level that the machine has not.
    """
    machine = placement.machine
    head = f"machine {machine.name}"
    levels = [level.name for level in machine.levels]
    for node, above in walk(placement.mapping.tree):
        if isinstance(node, Temporal | Spatial) and node.level not in levels:
            raise MappingError(f"{head}: has no level {node.level!r}; it has {', '.join(levels)}")
        if isinstance(node, Temporal) and node.streams:
            _check_streams(placement, node, above)
    for tensor, memory in placement.mapping.homes:
        if memory not in machine.memories:
            known = ", ".join(machine.memories)
            raise MappingError(f"{head}: has no memory {memory!r} for {tensor}; it has {known}")
        _check_home(placement, tensor, memory)
    vector = placement.vector_engine
    needed = [
        (s.operation.function, f"operation {s.operation.name}")
        for s in placement.sites
        if s.operation.kind != "contract"
    ]
    if placement.matrix_engine is None and len(needed) < len(placement.sites):
        raise MappingError(f"{head}: has no matrix engine, which a contraction needs")
    for node, _ in walk(placement.mapping.tree):
        if not isinstance(node, Collective):
            continue
        if node.function is not None:
            needed.append((node.function, f"{node.kind} of {node.tensor}"))
        check_collective(placement, node)
    for function, what in needed:
        if vector is None:
            raise MappingError(f"{head}: has no vector engine, which {what} needs")
        if function not in vector.ops:
            raise MappingError(
                f"{head}: engine.{vector.name} cannot run {function!r} of {what}; it runs "
                f"{', '.join(sorted(vector.ops))}"
            )


def _check_streams(placement: Placement, node: Temporal, above: tuple[Node, ...]) -> None:
    known = [t.name for t in placement.workload.tensors]
    for tensor in node.streams:
        if tensor not in known:
            raise MappingError(
                f"{_head(placement)}: streams {tensor} at {node.level}; expected some of "
                f"{', '.join(known)}"
            )
    if not any(isinstance(x, Temporal) and x.level == node.level and not x.streams for x in above):
        raise MappingError(
            f"{_head(placement)}: streams {', '.join(node.streams)} at {node.level}, where no node "
            "further out moves the other tensors; put one around it, or stream nothing"
        )


def _check_home(placement: Placement, tensor: str, memory: str) -> None:
    names = [t.name for t in placement.workload.tensors]
    if tensor not in names:
        raise MappingError(f"home of {tensor}: unknown tensor; the workload has {', '.join(names)}")
    users = [
        index
        for index, part in enumerate(placement.parts)
        for s in part
        if tensor in (*s.operation.inputs, s.operation.output)
    ]
    if len(set(users)) > 1 and memory != placement.root:
        raise MappingError(
            f"home of {tensor}: got {memory}; it passes between parts of the tree that run one "
            f"after the other as a whole; expected {placement.root}"
        )


def refuse(placement: Placement, faults: tuple[Illegal, ...]) -> None:
    """Refuses a single mapping that breaks a rule.

    Raises:
      MappingError: a fault's loops have more than one step.
    """
    for fault in faults:
        if isinstance(fault.steps, float) and fault.steps > 1:
            raise MappingError(f"{_head(placement)}: {fault.reason}")
