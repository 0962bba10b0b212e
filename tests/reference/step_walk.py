"""Traffic of a mapping, counted by walking its loop nest step by step.

One idea: run the tree. Every temporal step of every unit is visited in order, each memory remembers
which tile of a tensor it was handed last, and a tile moves when it is not the one that is there.
Tiles are told apart by the indices of the loops that select them; their sizes are counted element
by element against the true extents, so a partial tile at an edge is never padded. Plain Python
integers, no closed form, nothing of `jaxcomet.cost`.

Rules, in the words of `jaxcomet.cost.conventions.RULES` at their defaults:

* A tensor moves down from its home (inputs, outputs: the outermost memory) level by level to the
  engine, a result up to its home. "A result that its consumer reads where it was made is not
  written up": a memory above the home never sees it.
* What is handed over inside a fused group is new in each step of the loops above its home.
* The moves between a level and the next belong to the innermost loop node of that level that does
  not stream other tensors alone; what two nodes move is counted for each of them.
* All units take part in each step, those at the edge with what is left for them (perhaps nothing).
* "Every receiver of a broadcast writes": equal tiles for several children are written by each; the
  parent reads them once if the network broadcasts, else once for each child.
* A result that children hold alike: the parent writes, and a child reads, one copy if an all-reduce
  below the node has made them equal in the child memory, or if an element-by-element operation has
  made them of the same operands; else each child reads its own, and the
  parent writes one (network with reduction) or one for each child.
* "Partial sums that leave the engine are read back to be continued", and likewise "partial row
  results": a tile that has gone up before is read back before it is continued.
* Elements have the tensor's width at the outermost boundary and the operation's width below it.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field

from jaxcomet.hardware import Machine, MatrixEngine
from jaxcomet.mapping import Collective, Compute, Group, Loop, Mapping, Node, Spatial, Temporal
from jaxcomet.workload import CompoundOp, Operation

Key = tuple[str, str, str, str]
"""(tensor, fill or drain, parent memory, child memory or engine)."""


@dataclass
class Moved:
    """Bytes that the parent memory reads or writes, and that the child memories write or read."""

    parent_bits: int = 0
    child_bits: int = 0

    @property
    def parent_bytes(self) -> float:
        return self.parent_bits / 8

    @property
    def child_bytes(self) -> float:
        return self.child_bits / 8


@dataclass(frozen=True)
class _Frame:
    """A loop node on the way from the root to where the walk is, with the indices of its loops."""

    node: Temporal | Spatial
    level: int
    loops: tuple[Loop, ...]
    indices: tuple[int, ...]


@dataclass
class _State:
    workload: CompoundOp
    mapping: Mapping
    machine: Machine
    moved: dict[Key, Moved] = field(default_factory=dict)
    resident: dict[tuple, tuple] = field(default_factory=dict)
    passed_parent: set[tuple] = field(default_factory=set)
    sent_up: set[tuple] = field(default_factory=set)
    calls: int = 0


def _steps(state: _State, loop: Loop) -> int:
    number = 1
    for name in loop.factors:
        number *= int(state.mapping.factors[name])
    return number


def _indices(state: _State, loops: tuple[Loop, ...]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(_steps(state, loop)) for loop in loops))


def count(workload: CompoundOp, mapping: Mapping, machine: Machine) -> dict[Key, Moved]:
    """Bytes of every tensor over every boundary, over the whole run and all units.

    Args:
      workload: whole sizes, one shape.
      mapping: whole factors, one mapping.
      machine: its levels, paths and network switches count; its numbers do not.

    Returns:
      Moved bytes by (tensor, direction, parent, child); what is read back of partial results is
      under ``fill``.
    """
    state = _State(workload, mapping, machine)
    _visit(state, mapping.tree, ())
    return state.moved


def calls(workload: CompoundOp, mapping: Mapping, machine: Machine) -> int:
    """Engine calls of a mapping, all units together: how long `count` takes."""

    def below(node: Node, runs: int) -> int:
        match node:
            case Temporal():
                return below(node.body, runs * _product(state, node.loops))
            case Spatial():
                return below(node.body, runs * _product(state, (*node.x, *node.y)))
            case Group():
                return sum(below(child, runs) for child in node.children)
            case Compute():
                return runs
            case Collective():
                return 0

    state = _State(workload, mapping, machine)
    return below(mapping.tree, 1)


def _product(state: _State, loops: tuple[Loop, ...]) -> int:
    number = 1
    for loop in loops:
        number *= _steps(state, loop)
    return number


def _visit(state: _State, node: Node, frames: tuple[_Frame, ...]) -> None:
    match node:
        case Temporal() | Spatial():
            loops = node.loops if isinstance(node, Temporal) else (*node.x, *node.y)
            level = state.machine.level_index(node.level)
            for indices in _indices(state, loops):
                _visit(state, node.body, (*frames, _Frame(node, level, loops, indices)))
        case Group():
            for child in node.children:
                _visit(state, child, frames)
        case Compute():
            _call(state, node, frames)
        case Collective():
            pass


def _engine(machine: Machine, operation: Operation) -> tuple[str, MappingABC[str, str]]:
    """(engine, innermost memory of each tensor of the operation)."""
    for name, engine in machine.engines.items():
        if isinstance(engine, MatrixEngine) == (operation.kind == "contract"):
            sources = engine.operands
            if len(sources) < len(operation.inputs):
                sources = (sources[0],) * len(operation.inputs)
            buffers = dict(zip(operation.inputs, sources, strict=False))
            return name, {**buffers, operation.output: engine.result}
    raise AssertionError(operation)


def _call(state: _State, compute: Compute, frames: tuple[_Frame, ...]) -> None:
    state.calls += 1
    machine = state.machine
    operation = state.workload.operation(compute.operation)
    engine, buffers = _engine(machine, operation)
    homes = dict(state.mapping.homes)
    # a result that the operation also reads (a running value) comes down and goes up
    for place, tensor in enumerate((*operation.inputs, operation.output)):
        drain = place == len(operation.inputs)
        path = machine.path(buffers[tensor])
        home = machine.level_index(machine.memories[homes.get(tensor, path[0])].level)
        for level in range(home, len(machine.levels)):
            child = path[level + 1] if level + 1 < len(path) else engine
            ends = (path[level], child)
            _boundary(state, compute, operation, tensor, drain, frames, level, home, *ends)


def _boundary(
    state: _State,
    compute: Compute,
    operation: Operation,
    tensor: str,
    drain: bool,
    frames: tuple[_Frame, ...],
    level: int,
    home: int,
    parent: str,
    child: str,
) -> None:
    """Moves the tile of one tensor between a level and the next, if it is not there yet."""
    dims = state.workload.tensor(tensor).dims
    depth = max(
        i
        for i, f in enumerate(frames)
        if isinstance(f.node, Temporal)
        and f.level == level
        and (not f.node.streams or tensor in f.node.streams)
    )
    owner = frames[depth].node
    over = frames[: depth + 1]
    to_engine = level + 1 == len(state.machine.levels)

    rotating = any(_rotates(f, tensor, level) for f in frames[depth + 1 :])
    parent_unit, child_unit, among_equals = [], [], []
    for f in frames:
        if isinstance(f.node, Spatial) and f.level <= level + 1:
            child_unit.append(f.indices)
            if f.level <= level:
                parent_unit.append(f.indices)
            else:
                among_equals += [
                    i for x, i in zip(f.loops, f.indices, strict=True) if rotating or x.dim in dims
                ]
    times = tuple(f.indices for f in over if isinstance(f.node, Temporal))
    content, identity = [], []
    for f in over:
        if not isinstance(f.node, Temporal):
            continue
        for loop, index in zip(f.loops, f.indices, strict=True):
            if loop.dim in dims:
                content.append(index)
                identity.append(index)
            elif home > 0 and f.level < home:
                identity.append(index)

    direction = "drain" if drain else "fill"
    place = (id(owner), tensor, direction, child, tuple(child_unit), compute if to_engine else None)
    stays = not (to_engine and _reloaded(state, compute, operation, tensor, direction))
    if stays and state.resident.get(place) == tuple(identity):
        return
    state.resident[place] = tuple(identity)

    size = _elements(state, compute, tensor, frames, depth, level)
    root = level == 0 and not to_engine
    size *= state.workload.tensor(tensor).bits if root else operation.bits
    group = (id(owner), tensor, direction, child, tuple(parent_unit), tuple(among_equals), times)
    first_of_equals = group not in state.passed_parent
    state.passed_parent.add(group)

    if to_engine:
        at_parent, at_child = size, 0
    else:
        network = state.machine.memories[child].network
        assert network is not None
        # what several children make element by element of the same operands is equal
        reduced = drain and (operation.kind == "map" or _reduced(owner, tensor, child))
        once = network.broadcast if not drain else network.reduction or reduced
        at_parent = size if first_of_equals or not once else 0
        at_child = size if first_of_equals or not reduced else 0

    directions = [direction]
    if drain and operation.kind in ("contract", "reduce"):
        partial = (id(owner), tensor, tuple(child_unit), tuple(content))
        if partial in state.sent_up:
            directions.append("fill")
        state.sent_up.add(partial)
    for way in directions:
        entry = state.moved.setdefault((tensor, way, parent, child), Moved())
        entry.parent_bits += at_parent
        entry.child_bits += at_child


def _reloaded(
    state: _State, compute: Compute, operation: Operation, tensor: str, direction: str
) -> bool:
    """Whether a call of several folds leaves other weights in the array than it began with."""
    if operation.kind != "contract" or direction == "drain" or tensor != operation.inputs[1]:
        return False
    engine = next(e for e in state.machine.engines.values() if isinstance(e, MatrixEngine))
    left, right = (state.workload.tensor(t).dims for t in operation.inputs)
    out = state.workload.tensor(operation.output).dims
    contracted = columns = 1
    for loop in compute.tile:
        if loop.dim in left and loop.dim not in out:
            contracted *= _steps(state, loop)
        elif loop.dim in right and loop.dim not in left:
            columns *= _steps(state, loop)
    rows_of_array = int(engine.grid_rows * engine.array_rows)
    columns_of_array = int(engine.grid_columns * engine.array_columns)
    return contracted > rows_of_array or columns > columns_of_array


def _rotates(frame: _Frame, tensor: str, level: int) -> bool:
    """Whether units below a level pass the tensor's tiles of a frame's loops to each other."""
    node = frame.node
    return isinstance(node, Temporal) and tensor in node.rotates and frame.level <= level + 1


def _number(state: _State, frames: tuple[_Frame, ...], level: int) -> int:
    """The number of a unit of a level among those below the same unit."""
    found = 0
    for f in frames:
        if isinstance(f.node, Spatial) and f.level == level:
            for loop, index in zip(f.loops, f.indices, strict=True):
                found = found * _steps(state, loop) + index
    return found


def _reduced(node: Node, tensor: str, memory: str) -> bool:
    """Whether a collective below the node combines the tensor of the units of a memory."""
    match node:
        case Temporal() | Spatial():
            return _reduced(node.body, tensor, memory)
        case Group():
            return any(_reduced(c, tensor, memory) for c in node.children)
        case Collective():
            combines = node.kind in ("all_reduce", "reduce")
            return combines and (node.tensor, node.memory) == (tensor, memory)
        case Compute():
            return False


def _elements(
    state: _State,
    compute: Compute,
    tensor: str,
    frames: tuple[_Frame, ...],
    depth: int,
    level: int,
) -> int:
    """Elements that exist in the tile of one child: per dimension, those before the true extent.

    The loops of a tile need not lie inside all those that select it: of slices that are spread over
    units, each unit holds a piece of every slice.
    """
    number = 1
    for dim in state.workload.tensor(tensor).dims:
        held = [0]
        for i, f in enumerate(frames):
            chosen = i <= depth or (isinstance(f.node, Spatial) and f.level <= level + 1)
            rotates = i > depth and _rotates(f, tensor, level)
            for loop, index in zip(f.loops, f.indices, strict=True):
                if loop.dim != dim:
                    continue
                steps = _steps(state, loop)
                if rotates:
                    # in the first round each unit has the shard of its own number
                    index = (index + _number(state, frames, f.level)) % steps
                indices = [index] if chosen or rotates else range(steps)
                held = [x * steps + n for x in held for n in indices]
        for loop in compute.tile:
            if loop.dim == dim:
                steps = _steps(state, loop)
                held = [x * steps + n for x in held for n in range(steps)]
        number *= sum(x < int(state.workload.sizes[dim]) for x in held)
    return number


def single(workload: CompoundOp, mapping: Mapping, row: int) -> tuple[CompoundOp, Mapping]:
    """One row of a batch."""
    sizes = {d: float(s[row]) for d, s in workload.sizes.items()}  # pyright: ignore[reportIndexIssue]
    factors = {n: float(f[row]) for n, f in mapping.factors.items()}  # pyright: ignore[reportIndexIssue]
    return (
        dataclasses.replace(workload, sizes=sizes),
        dataclasses.replace(mapping, factors=factors),
    )
