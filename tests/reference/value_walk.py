"""Executes a mapping on the identity of its values: who holds which element, and how much of it.

One idea: an element of a result is the set of contributions that it has received (points of the
dimensions that its operation reduces). The tree is run step by step, all units side by side; each
engine call looks up every element that it reads where the mapping hands it over, and says so if it
was never made or lacks contributions. Nothing of `jaxcomet.cost`; no times, no numbers.

Rules:

* An element is handed over in the memory at its home's level, in the unit above the reading core;
  inputs and outputs in the outermost memory. Inputs are always there.
* A result waits in the buffer of the core that made it and goes up when it is asked for. If several
  units below one memory hold different contributions to an element, the memory gets their union
  where the network reduces; else one of them overwrites the others.
* A core continues what it has, or what a collective has made of it further up. It starts anew where
  it makes a point a second time, and in each step of the loops around both maker and users, unless
  the result is a running value, which another operation makes, too.
* An all-reduce gives each participant the union. All of them must hold the same elements, and
  a sum must not count a contribution twice. A reduce gives the union to the first participant, and
  the others have given theirs away. A gather brings all parts to the first participant. What other
  collectives exchange is taken to reach every participant.
* An operation that is `carried` over dimensions may read what lacks contributions along these, and
  its own result, or a later one, before that is made. What was made before it must have those of
  the block in hand. Running values join in an addition or a maximum; a product has what both have.
* Order inside a dimension is the same for all operations that share its factors: which columns a
  core calls its own is a matter of names. It is that of the first of them in the tree.
* An intermediate is alive at its home from its first contribution there to its last use, in the
  order of this walk: one stage of a pipeline after the other.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod

from jaxcomet.hardware import Machine, MatrixEngine, VectorEngine
from jaxcomet.mapping import (
    Collective,
    Compute,
    Group,
    Loop,
    Mapping,
    Node,
    Spatial,
    Temporal,
    computes,
    factor_chain,
    walk,
)
from jaxcomet.workload import CompoundOp, Operation

Dims = tuple[str, ...]
Index = tuple[int, ...]
Unit = tuple[tuple[int, int], ...]
"""Position (x, y) at each level below the outermost one."""

Cover = dict[Dims, int]
"""Contributions received: for the reduced dimensions, a bit for each of their points."""


@dataclass
class _Life:
    made: int
    last_use: int


@dataclass
class _Value:
    cover: Cover
    time: int
    life: _Life
    epoch: Index = ()
    pulled: bool = False
    given_away: bool = False


@dataclass(frozen=True)
class _Core:
    """A unit that takes part, and where it stands: the index of each factor passed on the way."""

    unit: Unit
    digits: dict[tuple[str, str], int]


@dataclass
class Executed:
    """What came out.

    Attributes:
      violations: a sentence for each operation and tensor that cannot be; empty if all is well.
      live_bytes: by memory, the most bytes of intermediates alive at once in one unit.
    """

    violations: list[str] = field(default_factory=list)
    live_bytes: dict[str, Fraction] = field(default_factory=dict)


def execute(workload: CompoundOp, mapping: Mapping, machine: Machine) -> Executed:
    """Runs a mapping.

    Args:
      workload: whole sizes, one shape; already rewritten where the mapping asks for it.
      mapping: whole factors, one mapping.
      machine: its levels, paths, meshes' switches count; its numbers do not.

    Raises:
      NotImplementedError: the tree skips steps that are masked.
    """
    run = _Execution(workload, mapping, machine)
    start = _Core(((0, 0),) * (len(machine.levels) - 1), {})
    run.visit(mapping.tree, [start])
    run.check_outputs()
    return Executed(list(run.violations.values()), run.most_alive())


class _Execution:
    def __init__(self, workload: CompoundOp, mapping: Mapping, machine: Machine) -> None:
        self.workload, self.mapping, self.machine = workload, mapping, machine
        self.sizes = {d: int(s) for d, s in workload.sizes.items()}
        self.order = {o.name: i for i, o in enumerate(workload.operations)}
        self.violations: dict[tuple[str, str], str] = {}
        self.held: dict[tuple[int, Unit, str], dict[Index, _Value]] = {}
        self.below: dict[tuple[int, Unit, str], set[Unit]] = {}
        self.lives: dict[tuple[str, Unit], list[tuple[_Life, Fraction]]] = {}
        self.clock = 0
        self.orders: dict[tuple[str, frozenset[str]], tuple[str, ...]] = {}
        self.chains: dict[tuple[str, str], tuple[str, ...]] = {}
        for call in computes(mapping.tree):
            for dim in workload.iteration_dims(workload.operation(call.operation)):
                chain = factor_chain(mapping.tree, call.operation, dim)
                self.chains[call.operation, dim] = self.orders.setdefault(
                    (dim, frozenset(chain)), chain
                )
        self.around = self._around()
        self.paths = {o.output: self._path(o) for o in workload.operations}
        homes = dict(mapping.homes)
        self.homes = {
            t: machine.level_index(machine.memories[homes.get(t, machine.root.name)].level)
            for t in self.paths
        }
        self.bytes = {t: self._element_bytes(t) for t in self.paths}

    def _around(self) -> dict[str, list[tuple[str, str]]]:
        """Factors of the loops around the maker and all users of a contraction or reduction."""
        above: dict[str, tuple[Node, ...]] = {}
        for node, nodes in walk(self.mapping.tree):
            if isinstance(node, Compute):
                above[node.operation] = nodes
        found = {}
        for op in self.workload.operations:
            makers = [o for o in self.workload.operations if o.output == op.output]
            users = self.workload.consumers(op.output)
            if op.kind == "map" or len(makers) > 1 or not users:
                continue
            shared = above[op.name]
            for user in users:
                both = zip(shared, above[user.name], strict=False)
                shared = tuple(a for a, _ in itertools.takewhile(lambda p: p[0] is p[1], both))
            loops = [x for n in shared if isinstance(n, Temporal) for x in n.loops]
            found[op.output] = [(x.dim, f) for x in loops for f in x.factors]
        return found

    def _path(self, operation: Operation) -> tuple[str, ...]:
        kind = MatrixEngine if operation.kind == "contract" else VectorEngine
        engines = [e for _, e in sorted(self.machine.engines.items())]
        return self.machine.path(next(e for e in engines if isinstance(e, kind)).result)

    def _element_bytes(self, tensor: str) -> Fraction:
        """Width at home: as stored in the outermost memory, else of the widest maker or user."""
        if self.homes[tensor] == 0:
            return Fraction(self.workload.tensor(tensor).bits, 8)
        ops = [o for o in self.workload.operations if tensor in (*o.inputs, o.output)]
        return Fraction(max(o.bits for o in ops), 8)

    def fault(self, who: str, tensor: str, sentence: str) -> None:
        """Notes the first fault of an operation with a tensor."""
        self.violations.setdefault((who, tensor), sentence)

    # -- the tree --------------------------------------------------------------------------------

    def count(self, loop: Loop) -> int:
        if loop.masked is not None and self.workload.mask is not None:
            raise NotImplementedError("a loop that skips what is masked")
        return prod(int(self.mapping.factors[f]) for f in loop.factors)

    def digits(self, loop: Loop, index: int) -> dict[tuple[str, str], int]:
        """Index of each factor of a loop, the first factor outermost."""
        found = {}
        for name in reversed(loop.factors):
            index, found[loop.dim, name] = divmod(index, int(self.mapping.factors[name]))
        return found

    def steps(self, loops: Sequence[Loop]) -> Iterator[tuple[Index, dict[tuple[str, str], int]]]:
        """(index of each loop, of each factor) of every step."""
        for indices in itertools.product(*(range(self.count(x)) for x in loops)):
            found: dict[tuple[str, str], int] = {}
            for loop, index in zip(loops, indices, strict=True):
                found |= self.digits(loop, index)
            yield indices, found

    def visit(self, node: Node, cores: list[_Core]) -> None:
        match node:
            case Temporal():
                for _, digits in self.steps(node.loops):
                    self.visit(node.body, [_Core(c.unit, c.digits | digits) for c in cores])
            case Spatial():
                self.visit(node.body, [d for c in cores for d in self.spread(c, node)])
            case Group():
                for child in node.children:
                    self.visit(child, cores)
            case Compute():
                self.clock += 1
                for core in cores:
                    self.call(node, core)
            case Collective():
                self.clock += 1
                self.exchange(node, cores)

    def spread(self, core: _Core, node: Spatial) -> Iterator[_Core]:
        at = self.machine.level_index(node.level) - 1
        for (along_x, x), (along_y, y) in itertools.product(self.steps(node.x), self.steps(node.y)):
            unit = list(core.unit)
            unit[at] = (
                self._position(unit[at][0], node.x, along_x),
                self._position(unit[at][1], node.y, along_y),
            )
            yield _Core(tuple(unit), core.digits | x | y)

    def _position(self, start: int, loops: Sequence[Loop], indices: Index) -> int:
        for loop, index in zip(loops, indices, strict=True):
            start = start * self.count(loop) + index
        return start

    # -- engine calls ------------------------------------------------------------------------------

    def call(self, node: Compute, core: _Core) -> None:
        op = self.workload.operation(node.operation)
        dims = self.workload.iteration_dims(op)
        ranges = {d: self.indices(d, self.chains[op.name, d], node.tile, core) for d in dims}
        out = self.workload.tensor(op.output).dims
        if not all(ranges[d] for d in out):
            return  # a unit at the edge, for which nothing is left
        covers: dict[str, dict[Index, Cover | None]] = {}
        for tensor in op.inputs:
            if tensor in self.paths:
                of = self.workload.tensor(tensor).dims
                points = itertools.product(*(ranges[d] for d in of))
                covers[tensor] = {i: self.read(op, tensor, i, core, ranges) for i in points}
        for index in itertools.product(*(ranges[d] for d in out)):
            if op.kind == "map":
                self.write_map(op, index, out, core, covers)
            else:
                self.contribute(op, index, out, core, ranges)

    def indices(
        self, dim: str, chain: Sequence[str], tile: Sequence[Loop], core: _Core
    ) -> list[int]:
        """Indices of a dimension inside a tile, those beyond the size left out."""
        found = []
        for _, digits in self.steps([x for x in tile if x.dim == dim]):
            number = 0
            for name in chain:
                digit = digits.get((dim, name), core.digits.get((dim, name), 0))
                number = number * int(self.mapping.factors[name]) + digit
            if number < self.sizes[dim]:
                found.append(number)
        return found

    def read(
        self, op: Operation, tensor: str, index: Index, core: _Core, ranges: dict[str, list[int]]
    ) -> Cover | None:
        """Contributions of an element that is read; None where it is not there (yet)."""
        level = self.homes[tensor]
        where = f"{op.name} reads {tensor}{list(index)} in {self.paths[tensor][level]}"
        value = self.value(level, core.unit[:level], tensor, index)
        makers = [self.order[o.name] for o in self.workload.operations if o.output == tensor]
        if value is None:
            before = tensor == op.output or min(makers) > self.order[op.name]
            if not (op.carried and before):
                self.fault(op.name, tensor, f"{where}, where it has not been made")
            return None
        value.life.last_use = self.clock
        for dims, mask in value.cover.items():
            full = (1 << prod(self.sizes[d] for d in dims)) - 1
            if mask == full:
                continue
            lacks = f"{(full & ~mask).bit_count()} of {full.bit_count()} contributions over {dims}"
            if not set(dims) <= set(op.carried):
                self.fault(op.name, tensor, f"{where}, which lacks {lacks}")
            elif min(makers) < self.order[op.name] and set(dims) <= set(ranges):
                block = self.points(dims, ranges)
                if block & ~mask:
                    self.fault(op.name, tensor, f"{where}, which lacks its own block: {lacks}")
        return value.cover

    def points(self, dims: Dims, ranges: dict[str, list[int]]) -> int:
        """Bits of the points of a call along dimensions."""
        mask = 0
        for point in itertools.product(*(ranges[d] for d in dims)):
            bit = 0
            for dim, i in zip(dims, point, strict=True):
                bit = bit * self.sizes[dim] + i
            mask |= 1 << bit
        return mask

    def contribute(
        self, op: Operation, index: Index, out: Dims, core: _Core, ranges: dict[str, list[int]]
    ) -> None:
        """A contraction or reduction adds the points of a call to an element; none at an edge."""
        reduced = tuple(d for d in self.workload.iteration_dims(op) if d not in out)
        new = self.points(reduced, ranges)
        epoch = tuple(core.digits[k] for k in self.around.get(op.output, ()))
        base = self.continued(op.output, index, core.unit)
        before = base.cover.get(reduced, 0) if base is not None else 0
        if base is None or before & new or base.epoch != epoch:
            self.put(op.output, index, core.unit, {reduced: new}, None, epoch)
        else:
            self.put(op.output, index, core.unit, {reduced: before | new}, base, epoch)

    def write_map(
        self,
        op: Operation,
        index: Index,
        out: Dims,
        core: _Core,
        covers: dict[str, dict[Index, Cover | None]],
    ) -> None:
        """An element-wise result; on running values it has what its operands have."""
        cover: Cover = {}
        if op.carried:
            for tensor, found in covers.items():
                dims = self.workload.tensor(tensor).dims
                for at, operand in found.items():
                    known = dict(zip(dims, at, strict=True))
                    if any(known.get(d, i) != i for d, i in zip(out, index, strict=True)):
                        continue
                    given = {tuple(op.carried): 0} if operand is None else operand
                    for key, mask in given.items():
                        if not set(key) & set(out):
                            cover[key] = self._joined(op, cover.get(key), mask)
        self.put(op.output, index, core.unit, cover, None, ())

    def _joined(self, op: Operation, one: int | None, other: int) -> int:
        if one is None:
            return other
        if op.function not in ("add", "max"):
            return one & other
        # contributions that are there already: the operation starts anew with this block
        return min(one, other, key=int.bit_count) if one & other else one | other

    # -- memories --------------------------------------------------------------------------------

    def put(
        self,
        tensor: str,
        index: Index,
        unit: Unit,
        cover: Cover,
        base: _Value | None,
        epoch: Index,
    ) -> None:
        """Writes an element to the buffer of the core that makes it."""
        level = len(self.paths[tensor]) - 1
        self._store(level, unit[:level], tensor, index, cover, base, epoch)
        for upper in range(level):
            self.below.setdefault((upper, unit[:upper], tensor), set()).add(unit[: upper + 1])

    def _store(
        self,
        level: int,
        unit: Unit,
        tensor: str,
        index: Index,
        cover: Cover,
        base: _Value | None,
        epoch: Index,
        *,
        time: int | None = None,
        pulled: bool = False,
    ) -> _Value:
        if base is not None:
            life = base.life
        else:
            life = _Life(self.clock, self.clock)
            if level == self.homes[tensor] and self.workload.is_intermediate(tensor):
                memory = self.paths[tensor][level]
                self.lives.setdefault((memory, unit), []).append((life, self.bytes[tensor]))
        value = _Value(cover, self.clock if time is None else time, life, epoch, pulled)
        self.held.setdefault((level, unit, tensor), {})[index] = value
        return value

    def continued(self, tensor: str, index: Index, unit: Unit) -> _Value | None:
        """What a core continues: its own, or what has been made of it further up since."""
        found = None
        for level in range(len(self.paths[tensor]) - 1, self.homes[tensor] - 1, -1):
            value = self.held.get((level, unit[:level], tensor), {}).get(index)
            if value is not None and value.given_away:
                return None
            if (
                value is not None
                and not value.pulled
                and (found is None or value.time > found.time)
            ):
                found = value
        return found

    def value(self, level: int, unit: Unit, tensor: str, index: Index) -> _Value | None:
        """An element in a memory, after all that waits below has come up."""
        own = self.held.get((level, unit, tensor), {}).get(index)
        newer = []
        for child in sorted(self.below.get((level, unit, tensor), ())):
            value = self.value(level + 1, child, tensor, index)
            if value is not None and (own is None or value.time > own.time):
                newer.append(value)
        if not newer:
            return None if own is not None and own.given_away else own
        last = max(newer, key=lambda v: v.time)
        cover = last.cover
        network = self.machine.memories[self.paths[tensor][level + 1]].network
        assert network is not None
        if network.reduction and any(v.cover != cover for v in newer):
            cover = self.union(f"the network below {self.paths[tensor][level]}", tensor, newer)
        return self._store(
            level, unit, tensor, index, cover, None, last.epoch, time=last.time, pulled=True
        )

    def union(self, who: str, tensor: str, values: Sequence[_Value]) -> Cover:
        """All contributions together; a sum must not count any twice."""
        producer = self.workload.producer(tensor)
        cover: Cover = {}
        for value in values:
            for dims, mask in value.cover.items():
                twice = cover.get(dims, 0) & mask
                if twice and producer is not None and producer.function != "max":
                    self.fault(who, tensor, f"{who} adds contributions to {tensor} twice")
                cover[dims] = cover.get(dims, 0) | mask
        return cover

    # -- collectives -----------------------------------------------------------------------------

    def exchange(self, node: Collective, cores: list[_Core]) -> None:
        tensor = node.tensor
        if tensor not in self.paths:
            return  # inputs are there anyway
        ranks = [(node.memory, node.x, node.y)]
        ranks += [(r.memory, r.x, r.y) for r in node.outer]
        factors = {f for _, x, y in ranks for f in (*x, *y)}
        everyone = [p for core in cores for p in self.participants(core, factors)]
        groups: dict[tuple, list[_Core]] = {}
        for p in everyone:
            key = tuple(sorted(kv for kv in p.digits.items() if kv[0][1] not in factors))
            groups.setdefault(key, []).append(p)
        level = self.machine.level_index(self.machine.memories[node.memory].level)
        for group in groups.values():
            if len(group) > 1:
                self.exchange_among(node, level, sorted(group, key=lambda p: p.unit))

    def participants(self, core: _Core, factors: set[str]) -> list[_Core]:
        """The core, or the units below it along participating factors not yet laid out."""
        found = [core]
        known = {name for _, name in core.digits}
        levels: set[str] = set()
        for node, _ in walk(self.mapping.tree):
            if not isinstance(node, Spatial) or node.level in levels:
                continue
            names = {f for x in (*node.x, *node.y) for f in x.factors}
            if names & factors and not names & known:
                levels.add(node.level)
                found = [d for c in found for d in self.spread(c, node)]
        return found

    def part(self, node: Collective, core: _Core) -> list[Index]:
        """Elements that a participant brings."""
        lists = []
        for dim in self.workload.tensor(node.tensor).dims:
            names = [f for d, f in core.digits if d == dim]
            names += [f for x in node.tile if x.dim == dim for f in x.factors]
            chain = self.orders.get((dim, frozenset(names)), tuple(names))
            lists.append(self.indices(dim, chain, node.tile, core))
        return list(itertools.product(*lists))

    def exchange_among(self, node: Collective, level: int, group: list[_Core]) -> None:
        tensor, who = node.tensor, f"{node.kind} between {node.memory}"
        parts = [self.part(node, p) for p in group]
        units = [p.unit[:level] for p in group]
        combines = node.kind in ("all_reduce", "reduce", "reduce_scatter")
        if combines and any(set(part) != set(parts[0]) for part in parts):
            self.fault(who, tensor, f"{who} combines different elements of {tensor}")
        holders: dict[Index, list[_Value]] = {}
        for unit, part in zip(units, parts, strict=True):
            for index in part:
                value = self.value(level, unit, tensor, index)
                if value is not None:
                    value.life.last_use = self.clock
                holders.setdefault(index, []).extend([value] if value is not None else [])
        first_only = node.kind in ("gather", "reduce")
        for index, values in holders.items():
            if not values:
                continue  # units at the edge, for which nothing is left; else a reader will say so
            cover = self.union(who, tensor, values) if combines else values[0].cover
            if node.kind == "reduce":
                for unit in units[1:]:
                    held = self.held.setdefault((level, unit, tensor), {})
                    life = _Life(self.clock, self.clock)
                    held[index] = _Value({}, self.clock, life, given_away=True)
            for unit in units[:1] if first_only else units:
                old = self.held.get((level, unit, tensor), {}).get(index)
                self._store(level, unit, tensor, index, cover, old, values[0].epoch)
                for upper in range(level):
                    kids = self.below.setdefault((upper, unit[:upper], tensor), set())
                    kids.add(unit[: upper + 1])

    # -- the end -----------------------------------------------------------------------------------

    def check_outputs(self) -> None:
        """Every result of the whole must have arrived, complete."""
        for op in self.workload.operations:
            tensor = op.output
            if self.workload.consumers(tensor):
                continue
            dims = self.workload.tensor(tensor).dims
            for index in itertools.product(*(range(self.sizes[d]) for d in dims)):
                value = self.value(0, (), tensor, index)
                if value is None:
                    self.fault(op.name, tensor, f"{op.name} never makes {tensor}{list(index)}")
                    continue
                for over, mask in value.cover.items():
                    if mask != (1 << prod(self.sizes[d] for d in over)) - 1:
                        what = f"{tensor}{list(index)} without all contributions over {over}"
                        self.fault(op.name, tensor, f"{op.name} leaves {what}")

    def most_alive(self) -> dict[str, Fraction]:
        """By memory, the most bytes of intermediates alive at once in one unit."""
        most: dict[str, Fraction] = {}
        for (memory, _), lives in self.lives.items():
            change: dict[int, Fraction] = {}
            for life, size in lives:
                change[life.made] = change.get(life.made, Fraction(0)) + size
                after = life.last_use + 1
                change[after] = change.get(after, Fraction(0)) - size
            alive = Fraction(0)
            for time in sorted(change):
                alive += change[time]
                most[memory] = max(most.get(memory, Fraction(0)), alive)
        return most
