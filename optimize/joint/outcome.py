"""What a co-design answers: machines on the grid with whole mappings, priced by the exact model.

The one idea: nothing of the search is reported as it is. Every point is priced anew from its
machine and its mappings, one workload at a time, held against budgets and bounds, and refused where
that disagrees with what the search saw.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import moocore
import numpy as np

from jaxcomet.cost import Cost
from jaxcomet.hardware.machine import Machine
from jaxcomet.hardware.technology import outside
from jaxcomet.mapping import Mapping
from jaxcomet.optimize.enumeration import exact_cost
from jaxcomet.optimize.joint.design import InfeasibleError
from jaxcomet.optimize.joint.incumbents import metrics
from jaxcomet.optimize.joint.objectives import Target
from jaxcomet.optimize.joint.run import Run
from jaxcomet.optimize.joint.scoring import MISFIT, Aim, Joint, Points, Scores


@dataclass(frozen=True, kw_only=True)
class Use:
    """What a machine takes of a budget.

    Attributes:
      budget: its name.
      used: how much.
      limit: how much there is.
      unit: of both.
      binds: one step of a number more would be better, but takes more than there is.
    """

    budget: str
    used: float
    limit: float
    unit: str
    binds: bool


@dataclass(frozen=True, kw_only=True)
class DesignPoint:
    """A machine with a mapping of each workload.

    Attributes:
      target: name of what it is the best for; ``start`` of the start machine.
      numbers: values of the free numbers in base units, by name.
      texts: the same in the units of the space.
      machine: the machine.
      mappings: one for each workload.
      costs: exact costs of the mappings on the machine.
      latency: cycles over all workloads: geometric mean, weighted sum, or worst ratio to the start.
      energy: pJ, in the same way.
      area_mm2: area of the machine.
      improvement: how many times the objective is better than on the start machine.
      uses: what it takes of each budget.
      at_bounds: free numbers at the end of their grids, in words.
      remarks: what lies outside the range that the area and energy models were fitted to.
    """

    target: str
    numbers: dict[str, float]
    texts: dict[str, str]
    machine: Machine
    mappings: tuple[Mapping, ...]
    costs: tuple[Cost, ...]
    latency: float
    energy: float
    area_mm2: float
    improvement: float
    uses: tuple[Use, ...]
    at_bounds: tuple[str, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FrontPoint:
    """A machine of the Pareto front.

    Attributes:
      latency: as in `DesignPoint`.
      energy: as in `DesignPoint`.
      area_mm2: as in `DesignPoint`.
      texts: values of the free numbers.
    """

    latency: float
    energy: float
    area_mm2: float
    texts: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class CodesignResult:
    """The answer of `codesign`.

    Attributes:
      workloads: names of the workloads.
      points: the best machine of each target.
      start: the start machine with its best mappings.
      start_proven: these mappings are proven to be the best.
      front: machines seen that no other one beats in latency, energy and area at once.
      hypervolume: share of a box that the front dominates: from nothing to twice the start's
        latency and energy and to the widest area allowed (twice the start's where none is).
      method: the method.
      proven: all machines within the budgets were priced with all mappings.
      stopped: ``complete``, ``budget``, ``time`` or ``interrupted``.
      evaluated: joint evaluations made; machines where all mappings of each are priced.
      lanes: mappings priced, gradients included, over all workloads.
      start_lanes: mappings priced to find the start's, not counted in the others.
      history: (joint evaluations, improvement of each target) each time one got better.
      seeds: of each seed of the descent, (target, improvement) of its best point before local
        moves; improvement 0 where none fitted.
      settings: what is needed to find the same again.
    """

    workloads: tuple[str, ...]
    points: tuple[DesignPoint, ...]
    start: DesignPoint
    start_proven: bool
    front: tuple[FrontPoint, ...]
    hypervolume: float
    method: str
    proven: bool
    stopped: str
    evaluated: float
    lanes: int
    start_lanes: int
    history: tuple[tuple[float, tuple[float, ...]], ...]
    seeds: tuple[tuple[str, float], ...]
    settings: dict[str, Any]

    @property
    def best(self) -> DesignPoint:
        """The best machine of the first target."""
        return self.points[0]


def result_of(
    run: Run, targets: tuple[Target, ...], stopped: str, settings: dict[str, Any]
) -> CodesignResult:
    """The answer of a run.

    Raises:
      InfeasibleError: no machine was found that keeps to a target's budgets and runs all workloads.
    """
    joint, found = run.joint, run.incumbents
    for number, total in enumerate(found.totals):
        if not math.isfinite(total):
            raise _infeasible(run, targets[number], stopped)
    assert found.points is not None
    start_totals = joint.total(_repeated(run.start.scores, len(targets)), _unlimited(run.targets))
    if not run.start.scores.fits.all():
        start_totals = np.full(len(targets), np.nan)
    several = []
    for number, target in enumerate(targets):
        aim = run.targets.take([number])
        best, total = _towards_start(joint, found.points.take([number]), aim)
        gain = float(np.exp(start_totals[number] - total))
        several.append(_point(joint, target.name, best, aim, gain, total))
    points = tuple(several)
    start = _point(joint, "start", run.start.points, run.targets.take([0]), 1.0, None)
    front = tuple(
        FrontPoint(
            latency=float(row[0]),
            energy=float(row[1]),
            area_mm2=float(row[2]),
            texts=_texts(joint, grid),
        )
        for row, grid in zip(found.front, _front_grids(run), strict=True)
    )
    return CodesignResult(
        workloads=tuple(item.name for item in joint.suite.items),
        points=points,
        start=start,
        start_proven=run.start.proven,
        front=front,
        hypervolume=hypervolume(run, targets),
        method=run.effort.method,
        proven=run.effort.method == "enumerate" and stopped == "complete",
        stopped=stopped,
        evaluated=run.evaluated,
        lanes=joint.lanes,
        start_lanes=run.start_lanes,
        history=tuple(
            (at, tuple(float(x) for x in np.exp(start_totals - np.array(totals))))
            for at, totals in found.history
        ),
        seeds=_seeds(run, targets, start_totals),
        settings=settings,
    )


def hypervolume(run: Run, targets: tuple[Target, ...]) -> float:
    """Share of the box that the front dominates; 0 where the front is empty."""
    front = run.incumbents.front
    if not len(front):
        return 0.0
    joint = run.joint
    latency, energy = metrics(joint, run.start.scores, run.targets)
    names = [b.name for b in joint.space.budgets]
    if "area" in names:
        area = max(t.limits[names.index("area")] for t in targets)
    else:
        area = 2.0 * float(run.start.scores.area[0])
    box = np.array([2.0 * float(latency[0]), 2.0 * float(energy[0]), area])
    return float(moocore.hypervolume(front / box, ref=np.ones(3)))


def _front_grids(run: Run) -> np.ndarray:
    points = run.incumbents.front_points
    return np.empty((0, len(run.joint.space.free))) if points is None else points.grid


def _towards_start(joint: Joint, points: Points, aim: Aim) -> tuple[Points, float]:
    """A point whose numbers are the start's wherever that is no worse, and its total.

    Numbers that make no difference else stand wherever the search has left them.
    """
    quiet = dataclasses.replace(joint, seen=None)
    total = float(quiet.total(quiet.score(points), aim)[0])
    for number, position in enumerate(joint.space.start_grid.tolist()):
        grid = points.grid.copy()
        grid[0, number] = position
        if (grid == points.grid).all() or joint.space.excess(grid, aim.limits)[0] > 1.0:
            continue
        moved = quiet.moved(points, grid)
        tried = float(quiet.total(quiet.score(moved), aim)[0])
        if tried <= total:
            points, total = moved, tried
    return points, total


def _repeated(scores: Scores, count: int) -> Scores:
    return scores.take(np.zeros(count, dtype=np.int64))


def _unlimited(aim: Aim) -> Aim:
    return dataclasses.replace(aim, limits=np.full_like(aim.limits, np.inf))


def _texts(joint: Joint, grid: np.ndarray) -> dict[str, str]:
    values = joint.space.values(grid)
    return {f.name: f.text(float(v)) for f, v in zip(joint.space.free, values, strict=True)}


def _seeds(
    run: Run, targets: tuple[Target, ...], start_totals: np.ndarray
) -> tuple[tuple[str, float], ...]:
    descent = run.descent
    if descent is None:
        return ()
    fits = descent.totals < MISFIT / 2
    gains = np.exp(np.where(fits, start_totals[descent.target] - descent.totals, -np.inf))
    return tuple(
        (targets[int(t)].name, float(g)) for t, g in zip(descent.target, gains, strict=True)
    )


def _point(
    joint: Joint, name: str, points: Points, aim: Aim, improvement: float, total: float | None
) -> DesignPoint:
    space, suite = joint.space, joint.suite
    grid = points.grid[0]
    machine = space.single(grid)
    mappings, costs = [], []
    for number, item in enumerate(suite.items):
        tree = suite.trees[points.tree[0, number]]
        factors = tree.factors(points.rows[:, number])
        mapping = dataclasses.replace(
            tree.mapping({n: float(v[0]) for n, v in factors.items()}),
            strategy=tree.way.label,
        )
        mappings.append(mapping)
        costs.append(exact_cost(item.workload, mapping, machine, joint.conventions))
    scores = Scores(
        np.array([[float(c.latency_cycles) for c in costs]]),  # pyright: ignore[reportArgumentType]
        np.array([[float(c.energy_pj) for c in costs]]),  # pyright: ignore[reportArgumentType]
        np.array([[float(c.pressure) for c in costs]]),  # pyright: ignore[reportArgumentType]
        np.array([float(space.area_mm2(machine))]),  # pyright: ignore[reportArgumentType]
    )
    if total is not None:
        again = float(joint.total(scores, aim)[0])
        over = float(space.excess(points.grid, aim.limits)[0])
        if not math.isclose(again, total, rel_tol=1e-9, abs_tol=1e-9) or over > 1.0:
            raise AssertionError(
                f"{name}: priced alone {again}, in the search {total}; {over} of the budgets: this "
                "is a defect of the search"
            )
    latency, energy = metrics(joint, scores, aim)
    values = space.values(grid)
    return DesignPoint(
        target=name,
        numbers={f.name: float(v) for f, v in zip(space.free, values, strict=True)},
        texts=_texts(joint, grid),
        machine=machine,
        mappings=tuple(mappings),
        costs=tuple(costs),
        latency=float(latency[0]),
        energy=float(energy[0]),
        area_mm2=float(scores.area[0]),
        improvement=improvement,
        uses=_uses(joint, points, aim, None if total is None else scores),
        at_bounds=tuple(
            f"{f.name}: {f.text(float(v))} is its {'lower' if g == 0 else 'upper'} bound"
            for f, v, g in zip(space.free, values, grid, strict=True)
            if len(f.grid) > 1 and g in (0, len(f.grid) - 1)
        ),
        remarks=outside(machine, space.technology),
    )


def _uses(joint: Joint, points: Points, aim: Aim, scores: Scores | None) -> tuple[Use, ...]:
    """What a machine takes of each budget; and whether a step beyond it would be better."""
    space = joint.space
    limits = aim.limits[0]
    used = [float(np.ravel(u)[0]) for u in space.uses(space.machines(points.grid))]
    binds = [False] * len(used)
    if scores is not None and used:
        count = len(space.free)
        moves = np.concatenate([np.eye(count, dtype=np.int64), -np.eye(count, dtype=np.int64)])
        tried = points.grid + moves
        tried = tried[((tried >= 0) & (tried < space.sizes)).all(axis=1)]
        uses = [np.broadcast_to(u, len(tried)) for u in space.uses(space.machines(tried))]
        over = np.stack(uses, axis=1) > limits
        single = np.flatnonzero(over.sum(axis=1) == 1)
        if len(single):
            rows = np.zeros(len(single), dtype=np.int64)
            quiet = dataclasses.replace(joint, seen=None)
            moved = quiet.moved(points.take(rows), tried[single])
            totals = quiet.total(quiet.score(moved), aim.take(rows))
            better = totals < joint.total(scores, aim)[0] - 1e-9
            binds = [bool((over[single, b] & better).any()) for b in range(len(used))]
    return tuple(
        Use(budget=b.name, used=u, limit=float(limit), unit=b.unit, binds=bind)
        for b, u, limit, bind in zip(space.budgets, used, limits, binds, strict=True)
    )


def _infeasible(run: Run, target: Target, stopped: str) -> InfeasibleError:
    """Which workload does not fit into which memory, and by how much."""
    joint = run.joint
    nearest = run.incumbents.nearest
    if nearest is None:
        return InfeasibleError(
            f"target {target.name}: no machine within the budgets was priced before the search "
            f"ended ({stopped}); give it more evaluations or time"
        )
    points, scores = nearest
    item = int(scores.pressure[0].argmax())
    point = _point(joint, target.name, points, run.targets.take([0]), math.nan, None)
    cost = point.costs[item]
    full = [o for o in cost.occupancy if o.share is not None]
    name = joint.suite.items[item].name
    if cost.illegal or not full:
        what = "no mapping tried is legal"
    else:
        worst = max(full, key=lambda o: float(o.share or 0.0))  # pyright: ignore[reportArgumentType]
        needed, there = float(worst.needed_bytes), float(worst.capacity_bytes or 0.0)  # pyright: ignore[reportArgumentType]
        what = (
            f"memory {worst.memory} holds {there:,.0f} byte, {needed:,.0f} byte are needed "
            f"({needed / there:.3g} times as much) where it was nearest"
        )
    return InfeasibleError(
        f"target {target.name}, workload {name}: nothing that was tried fits: {what}; raise the "
        "bound of its capacity or the budgets, or search longer"
    )
