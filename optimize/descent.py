"""Descent of the relaxed model by its gradients, many seeds at once.

The one idea: a seed is the logs of a mapping's factors. Adam (optax) moves them against the
gradient of the log of the objective, and after each step they are projected back onto what a split
is: logs >= 0 that add up to the log of the extent. Room and units are constraints of an augmented
Lagrangian (Nocedal and Wright, Numerical Optimization, section 17.3), because no projection reaches
them. Every few steps *every* seed is rounded to a mapping and scored by the exact model; what is
kept is the best of those, never a relaxed value.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxcomet.arith import relaxed
from jaxcomet.cost import cost_of
from jaxcomet.cost.conventions import Conventions
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Collective, Group, Mapping, Node, Spatial, Temporal
from jaxcomet.optimize.pricing import Objective, Part, pressure_of
from jaxcomet.optimize.problem import Problem
from jaxcomet.optimize.rounding import Rounding
from jaxcomet.workload import CompoundOp

LEARNING_RATE = 0.3
"""Of Adam, in logs of factors: a factor may change by a third in a step."""

STEPS = 20
"""Steps of a seed before it is drawn anew."""

ROUNDED = 4
"""Steps between two roundings."""

_PENALTY = 1.0  # of the augmented Lagrangian
_MULTIPLIER = 20.0  # its largest multiplier


class _Seeds(NamedTuple):
    """State of the seeds of one variant.

    Attributes:
      logs: per varying axis, logs of its varying factors, shape (seeds, columns).
      adam: state of the optimiser.
      multiplier: of the constraint, shape (seeds,).
    """

    logs: tuple[Any, ...]
    adam: Any
    multiplier: Any


def _project(logs: jax.Array, total: jax.Array) -> jax.Array:
    """Nearest logs >= 0 that add up to a total, shape (seeds, columns)."""
    if logs.shape[1] == 1:
        return jnp.full_like(logs, total)
    return jax.vmap(lambda x: optax.projections.projection_simplex(x, total))(logs)  # pyright: ignore[reportArgumentType]


def log_objective(latency: Any, energy: Any, objective: Objective) -> Any:
    """Log of what is minimised."""
    match objective:
        case "latency":
            return jnp.log(latency)
        case "energy":
            return jnp.log(energy)
        case "edp":
            return jnp.log(latency) + jnp.log(energy)


@dataclass(frozen=True)
class _Form:
    """What a compiled step depends on besides numbers.

    Attributes:
      names: per varying axis, names of its varying factors.
      conventions: rules of accounting.
      max_units: limits on units.
      objective: what is minimised.
    """

    names: tuple[tuple[str, ...], ...]
    conventions: Conventions
    max_units: tuple[tuple[str, int], ...]
    objective: Objective


@partial(jax.jit, static_argnames="form")
def relaxed_values(
    workload: CompoundOp, mapping: Mapping, machine: Machine, logs: tuple[Any, ...], form: _Form
) -> tuple[Any, Any]:
    """Log of the relaxed objective, and log of the pressure, of each seed.

    Args:
      workload: a single shape.
      mapping: the mapping with the factors that do not vary.
      machine: a single machine.
      logs: per varying axis, logs of its varying factors, shape (seeds, columns).
      form: what the numbers mean.
    """
    factors: dict[str, Any] = dict(mapping.factors)
    for names, several in zip(form.names, logs, strict=True):
        factors |= {n: jnp.exp(several[:, c]) for c, n in enumerate(names)}
    whole = dataclasses.replace(mapping, factors=factors)
    with relaxed(math.inf):
        cost = cost_of(workload, whole, machine, form.conventions)
        pressure = pressure_of(cost, form.max_units)
    value = log_objective(cost.latency_cycles, cost.energy_pj, form.objective)
    return value, jnp.log(jnp.maximum(pressure, 1e-30))


_ADAM = optax.adam(LEARNING_RATE)


# few seeds take no time, but fusing thousands of small operations does: twice that of all the rest
_UNFUSED = {"xla_disable_hlo_passes": "fusion"}


@partial(jax.jit, static_argnames=("form", "steps"), compiler_options=_UNFUSED)
def _advance(
    workload: CompoundOp,
    mapping: Mapping,
    machine: Machine,
    seeds: _Seeds,
    totals: tuple[Any, ...],
    form: _Form,
    steps: int,
) -> tuple[_Seeds, Any]:
    """Moves the seeds by a few steps; which of them stayed finite."""

    def loss(logs: tuple[Any, ...], multiplier: Any) -> tuple[Any, Any]:
        value, excess = relaxed_values(workload, mapping, machine, logs, form)
        pulled = jnp.maximum(0.0, multiplier + _PENALTY * excess)
        terms = value + (pulled**2 - multiplier**2) / (2.0 * _PENALTY)
        return terms.sum(), (terms, excess)

    def step(state: _Seeds, _: None) -> tuple[_Seeds, Any]:
        gradient, seen = jax.grad(loss, has_aux=True)(state.logs, state.multiplier)
        # along the split: Adam would make equal steps of what is common to all its factors
        gradient = tuple(g - g.mean(axis=1, keepdims=True) for g in gradient)
        updates, adam = _ADAM.update(gradient, state.adam, state.logs)
        moved = optax.apply_updates(state.logs, updates)
        logs = tuple(_project(x, t) for x, t in zip(moved, totals, strict=True))  # pyright: ignore[reportArgumentType]
        return _Seeds(logs, adam, state.multiplier), seen

    seeds, (losses, excess) = jax.lax.scan(step, seeds, None, length=steps)
    multiplier = jnp.clip(seeds.multiplier + _PENALTY * excess[-1], 0.0, _MULTIPLIER)
    finite = jnp.isfinite(losses).all(axis=0)
    for x in seeds.logs:
        finite &= jnp.isfinite(x).all(axis=1)
    return seeds._replace(multiplier=multiplier), finite


def settled(node: Node) -> Node:
    """The tree with definite algorithms, the mesh's, where it takes the fastest of all.

    A program with the derivatives of all of them takes minutes to compile. Where to go is seldom
    up to the algorithm, and exact scores take the fastest.
    """
    match node:
        case Temporal() | Spatial():
            return dataclasses.replace(node, body=settled(node.body))
        case Group():
            return dataclasses.replace(node, children=tuple(settled(c) for c in node.children))
        case Collective(algorithm="auto"):
            return dataclasses.replace(node, algorithm="mesh")
        case _:
            return node


def _single(x: Any) -> np.ndarray:
    """A number in single precision, which is enough to say where to go."""
    return np.asarray(x, dtype=np.float32)


class Relaxed:
    """The descent of one part: its numbers, ready for the compiled step."""

    def __init__(self, part: Part, objective: Objective, rounding: Rounding) -> None:
        """Prepares what stays the same."""
        self.axes = [i for i, c in enumerate(rounding.columns) if c]
        self._totals = tuple(_single(rounding.totals[i]) for i in self.axes)
        self._form = _Form(
            tuple(
                tuple(part.space.axes[i].names[c] for c in rounding.columns[i]) for i in self.axes
            ),
            part.conventions,
            part.max_units,
            objective,
        )
        fixed = {
            name: _single(axis.splits[0, column])
            for i, axis in enumerate(part.space.axes)
            for column, name in enumerate(axis.names)
            if column not in rounding.columns[i]
        }
        nameless = dataclasses.replace(part.machine, name="")
        mapping = dataclasses.replace(part.mapping, tree=settled(part.mapping.tree), factors=fixed)
        self._numbers = jax.tree.map(_single, (part.workload, mapping, nameless))

    def start(self, logs: tuple[Any, ...]) -> _Seeds:
        """Seeds at the start."""
        logs = tuple(jnp.asarray(x) for x in logs)
        return _Seeds(logs, _ADAM.init(logs), jnp.zeros(len(logs[0]), dtype=jnp.float32))

    def values(self, logs: tuple[Any, ...]) -> tuple[Any, Any]:
        """See `relaxed_values`."""
        workload, mapping, machine = self._numbers
        return relaxed_values(workload, mapping, machine, logs, self._form)

    def advance(self, seeds: _Seeds, steps: int) -> tuple[_Seeds, Any]:
        """Moves the seeds by a few steps; which of them stayed finite."""
        return _advance(*self._numbers, seeds, self._totals, form=self._form, steps=steps)


def descend(
    problem: Problem,
    rng: np.random.Generator,
    *,
    seeds: int,
    kept: list[np.ndarray] | None = None,
) -> Iterator[None]:
    """Descends from ever new seeds until the evaluations are spent; yields after each rounding.

    A gradient of one seed counts as one evaluation, and so does each exact score.

    Args:
      problem: what is searched.
      rng: source of all randomness.
      seeds: seeds at once.
      kept: where the best rounded point of each seed is put.

    Raises:
      BudgetSpentError: the evaluations are spent.
    """
    rounding = Rounding(problem)
    functions: dict[int, Relaxed] = {}
    while True:
        starts = _starts(problem, rng, seeds)
        yield
        for variant in np.unique(starts[:, 0]):
            chosen = starts[starts[:, 0] == variant]
            if variant not in functions:
                functions[variant] = Relaxed(problem.parts[variant], problem.objective, rounding)
            if functions[variant].axes:
                yield from _run(problem, rng, functions[variant], rounding, chosen, kept, seeds)


def _starts(problem: Problem, rng: np.random.Generator, seeds: int) -> np.ndarray:
    """Random points that are good among twice as many, in one variant: each compiles a program."""
    drawn = problem.random(rng, 2 * seeds)
    if problem.fits and len(problem.parts) > 1:
        drawn[: seeds // 2, 0] = problem.point[0]
    scores = problem.score(drawn)
    order = np.lexsort((scores[:, 1], scores[:, 0]))
    variants = list(dict.fromkeys(int(v) for v in drawn[order, 0]))[:1]
    within = [i for i in order if drawn[i, 0] in variants]
    return drawn[within[:seeds]]


def _run(
    problem: Problem,
    rng: np.random.Generator,
    function: Relaxed,
    rounding: Rounding,
    starts: np.ndarray,
    kept: list[np.ndarray] | None,
    width: int,
) -> Iterator[None]:
    """One descent of some seeds of one variant; the state is `width` wide, one program for all."""

    def logs_of(points: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(rounding.logs[i][points[:, 1 + i]].astype(np.float32) for i in function.axes)

    count = len(starts)
    wide = starts[np.minimum(np.arange(width), count - 1)]
    state = function.start(logs_of(wide))
    best: list[tuple[tuple[float, float], np.ndarray]] = [((np.inf, np.inf), p) for p in starts]
    for _ in range(STEPS // ROUNDED):
        problem.spend(ROUNDED * len(starts))
        state, finite = function.advance(state, ROUNDED)
        points = starts.copy()
        for place, axis in enumerate(function.axes):
            logs = np.nan_to_num(np.asarray(state.logs[place])[:count])
            points[:, 1 + axis] = rounding.rows(axis, logs)
        scores = problem.score(points)
        for i, score in enumerate(map(tuple, scores)):
            if score < best[i][0]:
                best[i] = (score, points[i].copy())
        dead = np.flatnonzero(~np.asarray(finite))
        if len(dead):
            state = _revived(function, state, dead, logs_of(problem.random(rng, len(dead))))
        yield
    if kept is not None:
        kept += [p for _, p in sorted(best, key=lambda b: b[0])]


def _revived(
    function: Relaxed, state: _Seeds, dead: np.ndarray, logs: tuple[np.ndarray, ...]
) -> _Seeds:
    """The seeds with new ones for those that are no numbers any more; moments cleared."""
    fresh = function.start(
        tuple(x.at[dead].set(new) for x, new in zip(state.logs, logs, strict=True))
    )

    def mended(old: Any, new: Any) -> Any:
        return old if jnp.ndim(old) == 0 else old.at[dead].set(new[dead])

    return jax.tree.map(mended, state, fresh)
