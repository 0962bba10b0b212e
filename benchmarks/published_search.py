"""Best mappings of the shapes that docs/published.md compares, found once and kept in a file.

The one idea: a result is named by everything that it depends on (workload, shape, strategy, its
options, conventions), so that a table asks for what it needs and only what is new is searched. A
kept result is priced again before it is used: one that no longer holds is searched anew.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxcomet import hardware, operations, strategies
from jaxcomet.cli.shapes import SHAPES, Shape
from jaxcomet.cost import conventions, evaluate, evaluate_totals
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Group, Loop, Node, Temporal
from jaxcomet.mapping import Mapping as MappingTree
from jaxcomet.optimize.enumeration import enumerate_mappings, size
from jaxcomet.optimize.space import spaces
from jaxcomet.plot.groups import latency_groups
from jaxcomet.rewrite import rewritten
from jaxcomet.strategies import Plan, Strategy, rows
from jaxcomet.strategies.nest import Nest
from jaxcomet.workload import CompoundOp

Rules = tuple[tuple[str, str], ...]
"""A preset of conventions and single rules that differ: ("preset", name), (rule, value), ..."""

DEFAULT: Rules = (("preset", "default"),)
PROGRAM: Rules = (("preset", "comet-program"),)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One shape on one machine.

    Attributes:
      workload: name of the compound operation.
      label: name of the shape in the tables.
      machine: name of the machine.
      sizes: arguments of the workload's builder.
    """

    workload: str
    label: str
    machine: str
    sizes: tuple[tuple[str, int | bool], ...]

    def operation(self) -> CompoundOp:
        """The compound operation."""
        builder = operations.catalog.find(self.workload).builder
        return builder(**dict(self.sizes))

    @property
    def text(self) -> str:
        """The shape in words."""
        s = dict(self.sizes)
        if self.workload != "attention":
            return f"{s['M']} x {s['N']} x {s['K']}"
        heads = f"{s['heads']}/{s.get('kv_heads', s['heads'])}"
        batch = f"batch {s['batch']}, " if s["batch"] != 1 else ""
        extra = "".join(f", {w}" for w in ("causal",) if s.get(w))
        if "vector_bits" in s:
            extra += f", {s['vector_bits']}-bit intermediates"
        return f"{batch}{heads} heads of {s['head_dim']}, q {s['q']}, kv {s['kv']}{extra}"

    def with_sizes(self, label: str, **sizes: int | bool) -> "Case":
        """The case with other arguments of its builder."""
        changed = {**dict(self.sizes), **sizes}
        return dataclasses.replace(self, label=label, sizes=tuple(sorted(changed.items())))


def _case(workload: str, label: str, shape: Shape) -> Case:
    sizes: dict[str, int | bool] = {n: int(v) for n, v in shape.sizes.items()}
    sizes |= {n: v for n, v in shape.options.items() if isinstance(v, bool) and v}
    return Case(
        workload=workload, label=label, machine=shape.machine, sizes=tuple(sorted(sizes.items()))
    )


CASES: dict[str, tuple[Case, ...]] = {
    workload: tuple(_case(workload, label, shape) for label, shape in shapes.items())
    for workload, shapes in SHAPES.items()
}
"""Workload to shapes. Those of attention are ours: no source gives the authors' ones."""


def three_stages(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Plan:
    """Attention as three kernels: scores, one fused softmax on all cores, values."""
    spread = {"keys": ("N",), "heads": ("H", "N"), "rows": ("H", "M", "N")}[options["spread"]]
    of_values = {"keys": ("L", "M"), "heads": ("H", "L", "M"), "rows": ("H", "M", "L")}
    scores, softmax = rows.split(workload)
    values = workload.operations[-1]
    nest = Nest(workload, machine, stage="softmax.", spread=spread)
    branches, homes = rows.dist_branches(nest, softmax)
    body = nest.over_units(1, Group(tuple(branches)))
    fused = Temporal(nest.levels[0], rows.outer_loops(nest, "M"), body)
    last = Nest(workload, machine, stage="values.", spread=of_values[options["spread"]])
    stages = (
        rows.matrix_stage(Nest(workload, machine, spread=spread), scores),
        fused,
        rows.matrix_stage(last, values, "MLN"),
    )
    return Plan(Group(stages), {t: m for t, m in homes.items() if t != values.inputs[0]})


THREE_STAGES = Strategy(
    name="three-stages", options={"spread": ("heads", "rows", "keys")}, plan=three_stages
)
"""Another reading of "unfused" attention: only the three operations run apart, not their steps."""


def unfused(workload: CompoundOp, machine: Machine, *, order: str, tile: bool) -> Plan:
    """Each elementary operation through DRAM, as `unfused` of the package.

    Args:
      workload: GEMM-softmax or GEMM-LayerNorm.
      machine: a machine.
      order: dimensions that the GEMM tiles at DRAM.
      tile: of a softmax the exponentials are exchanged, not their sums.
    """
    gemm, vector = rows.split(workload)
    nest = Nest(workload, machine, stage="vector.")
    row_nest = Nest(workload, machine, stage="row.", spread=("M",))
    stages: list[Node] = [rows.matrix_stage(Nest(workload, machine), gemm, order)]
    summation = [o for o in vector if o.kind == "reduce"][1]
    columns = (
        *(f for i in range(2, nest.last + 1) for f in nest.spatial_factors("N", i)),
        *nest.below("N", 0),
    )
    part = (Loop("M", nest.below("M", min(1, nest.last - 1))), Loop("N", columns))
    plain = rows.unfused_vector(nest, row_nest, vector)
    for o, stage in zip(vector, plain, strict=True):
        summed = o.output == summation.inputs[0]
        if not tile or not (summed or o is summation):
            stages.append(stage)
            continue
        nodes = list(nest.loop(nest.down(o, 1, None if summed else o.function)))
        if summed:
            exchange = nest.combine("all_reduce", o.output, summation.function, 1, part=part)
            nodes += nest.loop((exchange,))
        body = nest.over_units(1, nodes[0] if len(nodes) == 1 else Group(tuple(nodes)))
        assert isinstance(stage, Temporal)
        stages.append(Temporal(stage.level, stage.loops, body))
    return Plan(Group(tuple(stages)))


def fused_dist_whole(workload: CompoundOp, machine: Machine, options: dict[str, str]) -> Plan:
    """As `fused-distsm` and `fused-distln`; the GEMM tiles its rows alone at DRAM."""
    gemm, vector = rows.split(workload)
    nest = Nest(workload, machine, stage="vector.")
    branches, homes = rows.dist_branches(nest, vector, options["reduce"])
    body = nest.over_units(1, Group(tuple(branches)))
    fused = Temporal(nest.levels[0], rows.outer_loops(nest, "M"), body)
    stages = (rows.matrix_stage(Nest(workload, machine), gemm, "M"), fused)
    return Plan(Group(stages), homes)


_ALL, _ROWS = "NMK", "M"
_OWN = {
    s.name: s
    for s in (
        THREE_STAGES,
        Strategy(
            name="unfused-tile",
            options={},
            plan=lambda w, m, _: unfused(w, m, order=_ALL, tile=True),
        ),
        Strategy(
            name="unfused-whole",
            options={},
            plan=lambda w, m, _: unfused(w, m, order=_ROWS, tile=False),
        ),
        Strategy(
            name="unfused-tile-whole",
            options={},
            plan=lambda w, m, _: unfused(w, m, order=_ROWS, tile=True),
        ),
        Strategy(
            name="fused-dist-whole", options={"reduce": ("rows", "tile")}, plan=fused_dist_whole
        ),
    )
}
"""Other readings of the comparison, by name.

``tile``: "unfused" exchanges what the released fused mapping exchanges. ``whole``: the GEMM's
second operand is not tiled at DRAM, as in the released space of mappings.
"""


def strategy_of(workload: str, name: str) -> Strategy:
    """A strategy of the package, or one that is defined here."""
    return _OWN.get(name) or strategies.get(workload, name)


def ways(strategy: Strategy, **fixed: tuple[str, ...]) -> tuple[dict[str, str], ...]:
    """Sets of options to try: both ways to hold the weights, all spreads, and `fixed` ones."""
    tried: list[dict[str, str]] = [{}]
    for name in ("weights", "spread", *fixed):
        values = fixed.get(name, strategy.options.get(name, ()))
        values = tuple(v for v in values if v in strategy.options.get(name, ()))
        if values:
            tried = [{**t, name: v} for t in tried for v in values]
    return tuple(tried)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A strategy at its best mapping.

    Attributes:
      strategy: name of the strategy.
      options: its options, those left at their defaults left out.
      label: both in a word.
      feasible: whether it can run.
      latency: cycles.
      energy: pJ.
      mappings: mappings of its space.
      bus: cycles that the DRAM needs for the busier of its two directions.
      groups: cycles per group of `jaxcomet.plot.groups`.
      energy_parts: pJ per component.
      factors: the mapping, factors of 1 left out.
    """

    strategy: str
    options: dict[str, str]
    label: str
    feasible: bool
    latency: float
    energy: float
    mappings: int
    bus: float
    groups: dict[str, float]
    energy_parts: dict[str, float]
    factors: dict[str, float]


Progress = Callable[[str], None]


class Searcher:
    """Finds best mappings and keeps them in a file of one JSON object a line."""

    def __init__(self, kept: Path | None, note: Progress | None = None) -> None:
        self.machines = {name: hardware.load(name) for name in ("edge", "cloud")}
        self.kept, self.note = kept, note
        self.known: dict[str, dict[str, Any]] = {}
        self.used: dict[str, Result] = {}
        self.searched = 0
        if kept is not None and kept.exists():
            for line in kept.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.known[entry["key"]] = entry

    def best(
        self,
        case: Case,
        strategy: str,
        options: Mapping[str, str] | None = None,
        rules: Rules = DEFAULT,
    ) -> Result:
        """The fastest mapping of a strategy with one set of options."""
        options = dict(options or {})
        named = json.dumps(
            [case.workload, case.machine, case.sizes, strategy, sorted(options.items()), rules]
        )
        if named not in self.used:
            self.used[named] = self._held(named, case, strategy, options, rules) or self._search(
                named, case, strategy, options, rules
            )
        return self.used[named]

    def fastest(
        self,
        case: Case,
        names: Iterable[str],
        rules: Rules = DEFAULT,
        **fixed: tuple[str, ...],
    ) -> Result:
        """The fastest of several strategies and all their sets of options."""
        found = [
            self.best(case, name, options, rules)
            for name in names
            for options in ways(strategy_of(case.workload, name), **fixed)
        ]
        return min(found, key=lambda r: (not r.feasible, r.latency, r.energy))

    def again(self, case: Case, result: Result, rules: Rules) -> Result:
        """The same mapping under other conventions."""
        return self._priced(
            case, result.strategy, result.options, rules, result.factors, result.mappings
        )

    def _held(
        self, named: str, case: Case, strategy: str, options: dict[str, str], rules: Rules
    ) -> Result | None:
        entry = self.known.get(named)
        if entry is None:
            return None
        space = size(
            case.operation(),
            self.machines[case.machine],
            strategy_of(case.workload, strategy),
            **options,
        )
        if space != entry["mappings"]:
            return None
        result = self._priced(case, strategy, options, rules, entry["factors"], entry["mappings"])
        same = math.isclose(result.latency, entry["latency"], rel_tol=1e-9)
        return result if same and result.feasible == entry["feasible"] else None

    def _priced(
        self,
        case: Case,
        strategy: str,
        options: dict[str, str],
        rules: Rules,
        factors: Mapping[str, float],
        mappings: int,
    ) -> Result:
        machine, how = self.machines[case.machine], strategy_of(case.workload, strategy)
        op = case.operation()
        mapping = how.build(op, machine, factors, **options)
        cost = evaluate(op, mapping, machine, conventions=conventions(**dict(rules))).row(0)
        moved = {"fill": 0.0, "drain": 0.0}
        for t in cost.traffic:
            if t.parent == "dram":
                moved[t.direction] += float(t.parent_bytes)  # pyright: ignore[reportArgumentType]
        width = machine.memories["dram"].child_bandwidth_bytes_per_cycle
        bus = max(moved.values()) / float(width)  # pyright: ignore[reportArgumentType]
        return Result(
            strategy=strategy,
            options=options,
            label=how.label(options),
            feasible=bool(cost.feasible),
            latency=float(cost.latency_cycles),
            energy=float(cost.energy_pj),
            mappings=mappings,
            bus=bus,
            groups=latency_groups(cost, machine),
            energy_parts={n: float(v) for n, v in cost.energy_parts.items()},
            factors={n: float(f) for n, f in mapping.factors.items() if float(f) != 1.0},
        )

    def _search(
        self, named: str, case: Case, strategy: str, options: dict[str, str], rules: Rules
    ) -> Result:
        how = strategy_of(case.workload, strategy)
        if self.note is not None:
            self.note(f"{case.label} {how.label(options)}")
        self.searched += 1
        found = enumerate_mappings(
            case.operation(),
            self.machines[case.machine],
            how,
            options=options,
            conventions=conventions(**dict(rules)),
        )
        factors = {n: float(f) for n, f in found.mapping.factors.items() if float(f) != 1.0}  # pyright: ignore[reportArgumentType]
        mappings = sum(s.size for s in found.searched)
        result = self._priced(case, strategy, options, rules, factors, mappings)
        if self.kept is not None:
            entry = {
                "key": named,
                "mappings": mappings,
                "latency": result.latency,
                "feasible": result.feasible,
                "factors": factors,
            }
            self.kept.parent.mkdir(parents=True, exist_ok=True)
            with self.kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        return result

    def drawn(
        self,
        case: Case,
        strategy: str,
        options: Mapping[str, str],
        rules: Rules,
        *,
        tries: int,
        repeats: int,
        seed: int,
    ) -> np.ndarray:
        """Latency of the best of a few mappings drawn at random, several times over.

        Of each part of the strategy that has factors of its own as many are drawn. A draw none of
        which can run is infinite.

        Returns:
          Cycles, shape (repeats,).
        """
        how, op, machine = (
            strategy_of(case.workload, strategy), case.operation(), self.machines[case.machine],
        )  # fmt: skip
        plan = how.planned(op, machine, **options)
        form = rewritten(op, plan.rewrites)
        rng = np.random.default_rng(seed)
        total = np.zeros(repeats)
        for space in spaces(form, machine, plan.tree):
            part = MappingTree(
                strategy=how.label(options),
                tree=space.tree,
                homes=tuple(sorted(plan.homes.items())),
                factors=space.factors(rng.integers(0, space.size, repeats * tries)),
                rewrites=plan.rewrites,
            )
            totals = evaluate_totals(op, part, machine, conventions=conventions(**dict(rules)))
            cycles = np.where(totals.pressure <= 1.0, totals.latency_cycles, np.inf)
            total += cycles.reshape(repeats, tries).min(axis=1)
        return total


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    return math.exp(sum(math.log(v) for v in values) / len(values))
