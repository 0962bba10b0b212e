"""The search for the best mapping: `map(workload, machine) -> MapResult`.

The one idea: what is small enough is enumerated, which proves the answer; only what is not is
searched by gradients of the relaxed model and local moves (`jaxcomet.optimize.race`). Ways are
enumerated in the order of their lower bounds, and one whose bound is above the best mapping so far
is skipped: it cannot hold a better one. Whatever the method, the answer is an exactly priced
mapping, with a lower bound beside it.
"""

import contextlib
from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field
from typing import Literal, get_args

import jax
import numpy as np

from jaxcomet import strategies as _strategies
from jaxcomet._version import __version__
from jaxcomet.cost.conventions import DEFAULT, Conventions
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import MappingError
from jaxcomet.optimize.bounds import Bound, plan_bound, tree_bound, workload_bound
from jaxcomet.optimize.pricing import OBJECTIVES, Objective
from jaxcomet.optimize.proof import enumerate_ways
from jaxcomet.optimize.pruning import TooManyError
from jaxcomet.optimize.race import race
from jaxcomet.optimize.result import ImpossibleError, MapResult, SearchError, WayResult
from jaxcomet.optimize.space import TILES, UNITS, Scope, Tiles, Units
from jaxcomet.optimize.task import Clock, Counter, Task, outcome
from jaxcomet.optimize.ways import LoopOrders, Way, candidates, ways
from jaxcomet.rewrite import rewritten
from jaxcomet.workload import CompoundOp

Method = Literal["auto", "enumerate", "gradient", "local", "random", "cma"]
METHODS: tuple[Method, ...] = get_args(Method)

ENUMERATED = 100_000_000
"""Mappings up to which ``auto`` enumerates."""

BRANCHED = 30_000_000
"""Mappings that it prices, of more than those, to find out whether the others can be skipped."""

BUDGET = 20_000
"""Evaluations of the methods that do not enumerate, where none are given."""

OPTIONS = {"binding": "all", "algorithm": "auto"}
"""Options of strategies where none are given: every binding, and the fastest algorithm of each
collective; besides, every value of those in `ways.TRIED`."""


def map(
    workload: CompoundOp,
    machine: Machine,
    *,
    objective: Objective = "latency",
    strategies: Literal["all"] | Sequence[str] = "all",
    without: Sequence[str] = (),
    options: MappingABC[str, str] | None = None,
    loop_orders: LoopOrders = "fixed",
    tiles: Tiles = "padded",
    units: Units = "all",
    fixed: MappingABC[str, int] | None = None,
    max_units: MappingABC[str, int] | None = None,
    method: Method = "auto",
    seeds: int = 32,
    budget: int | None = None,
    time_limit_s: float | None = None,
    conventions: Conventions = DEFAULT,
    key: jax.Array | int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> MapResult:
    """The best mapping of a workload on a machine.

    Args:
      workload: a single shape.
      machine: a single machine.
      objective: ``latency`` (cycles), ``energy`` (pJ) or ``edp`` (their product).
      strategies: names of the strategies to try, or ``all``.
      without: names of strategies not to try.
      options: a value by option of a strategy, or ``all`` values; see `OPTIONS` for the default.
      loop_orders: ``fixed``, ``all``, or an order by level (``{"core": "NKM"}``, outermost first).
        Orders of `strategies.gemm` with slices are tried by ``all``, and on machines of two levels.
      tiles: sizes of tiles; see `space.Tiles`.
      units: numbers of units; see `space.Units`.
      fixed: values of factors that hold for all mappings; strategies without such a factor are left
        out.
      max_units: most units of a level that a mapping may use, over the whole machine, by level.
      method: ``enumerate`` prices every mapping that may be the best; ``gradient`` descends the
        relaxed model from many seeds and polishes by local moves; ``local``, ``random`` and ``cma``
        (CMA-ES) are its rivals; ``auto`` enumerates up to `ENUMERATED` mappings, and more where
        bounds leave up to `BRANCHED` to be priced, and else takes ``gradient``.
      seeds: seeds that descend at once.
      budget: most evaluations; a gradient of one seed counts as one. None: all of an enumeration,
        `BUDGET` else.
      time_limit_s: seconds after which the best so far is returned; also Ctrl-C does this.
      conventions: rules of accounting.
      key: key of all randomness (``jax.random.key(0)``), or its seed.
      progress: called with the evaluations so far and how many there will be at most.

    Returns:
      The best mapping with its exact cost, a lower bound, and whether it is proven. If nothing
      fits, the mapping nearest to fitting: `MapResult.reasons` says what it lacks.

    Raises:
      SearchError: an argument that cannot be; `ImpossibleError`: no way to map the workload on this
        machine.
      MappingError: an unknown strategy or option.

    Example:
      >>> from jaxcomet import gemm_softmax, hardware, optimize
      >>> found = optimize.map(gemm_softmax(1, 1024, 128), hardware.load("edge"))
      >>> found.strategy, found.proven
      ('fused-gemm-distsm', True)
    """
    clock = Clock(limit_s=time_limit_s)
    scope = _scope(tiles, units, fixed or {}, max_units or {}, machine)
    _check(objective, method, seeds, budget, time_limit_s)
    if not isinstance(loop_orders, str):
        _check_levels(loop_orders, machine)
    elif loop_orders not in ("fixed", "all"):
        raise SearchError(
            f"loop_orders: got {loop_orders!r}; expected fixed, all or orders by level"
        )
    names = _names(workload, strategies, without)
    every = isinstance(loop_orders, str) and loop_orders == "all"
    orders = {"order": "all"} if every or len(machine.levels) == 2 else {}
    chosen = candidates(workload.name, {**OPTIONS, **orders, **(options or {})}, names)
    found = ways(workload, machine, chosen, loop_orders=loop_orders, scope=scope)
    task, refused = _task(workload, machine, found, objective, conventions, scope)
    total = task.size
    taken = method
    if method == "auto":
        small = total <= ENUMERATED and (budget is None or total <= budget)
        taken = "enumerate" if small else "gradient"
    with clock.heeding_ctrl_c():
        answer = None
        if taken == "enumerate":
            answer = enumerate_ways(task, clock, Counter(progress, total))
        elif method == "auto" and budget is None:
            with contextlib.suppress(TooManyError):
                answer = enumerate_ways(task, clock, Counter(progress, total), most=BRANCHED)
                taken = "enumerate"
        if answer is None:
            most = min(BUDGET if budget is None else budget, total)
            rng = np.random.default_rng(_words(key))
            answer = race(task, taken, seeds, most, rng, clock, Counter(progress, most))
    strategy = answer.way.strategy
    result = MapResult(
        workload=workload,
        machine=machine,
        objective=objective,
        conventions=conventions,
        scope=scope,
        strategy=strategy.name,
        options=strategy.chosen(answer.way.options),
        loop_orders=answer.way.loop_orders,
        mapping=answer.best.mapping,
        cost=answer.best.cost,
        bound=workload_bound(workload, machine, conventions=conventions),
        proven=taken == "enumerate" and answer.stopped == "complete",
        stopped=answer.stopped,
        method=taken,
        size=total,
        evaluated=sum(w.evaluated for w in answer.ways),
        ways=(*answer.ways, *refused),
        history=answer.history,
        settings={
            "method": method,
            "seeds": seeds,
            "budget": budget,
            "time_limit_s": time_limit_s,
            "key": _words(key),
            "versions": {"jaxcomet": __version__, "jax": jax.__version__},
        },
    )
    _recheck(result)
    return result


def _recheck(result: MapResult) -> None:
    """The answer keeps to what was asked, and is not below its bound."""
    for name, value in result.scope.fixed:
        assert result.mapping.factors[name] == value, (name, value)
    assert not result.feasible or result.gap >= -1e-9, result.gap


def _words(key: jax.Array | int) -> list[int]:
    """The numbers of a key, or a seed."""
    if isinstance(key, int | np.integer):
        if key < 0:
            raise SearchError(f"key: got {key}; expected a seed >= 0 or a key of jax.random")
        return [int(key)]
    return [int(x) for x in np.ravel(jax.random.key_data(key))]


def _check(
    objective: str, method: str, seeds: int, budget: int | None, time_limit_s: float | None
) -> None:
    for name, value, known in (
        ("objective", objective, OBJECTIVES),
        ("method", method, METHODS),
    ):
        if value not in known:
            raise SearchError(f"{name}: got {value!r}; expected one of {', '.join(known)}")
    for name, number in (("seeds", seeds), ("budget", budget)):
        if number is not None and (not isinstance(number, int | np.integer) or number < 1):
            raise SearchError(f"{name}: got {number!r}; expected a whole number >= 1")
    if time_limit_s is not None and not time_limit_s > 0:
        raise SearchError(f"time_limit_s: got {time_limit_s!r}; expected seconds > 0")


def _scope(
    tiles: str,
    units: str,
    fixed: MappingABC[str, int],
    max_units: MappingABC[str, int],
    machine: Machine,
) -> Scope:
    for name, value, known in (("tiles", tiles, TILES), ("units", units, UNITS)):
        if value not in known:
            raise SearchError(f"{name}: got {value!r}; expected one of {', '.join(known)}")
    for what, numbers in (("fixed", fixed), ("max_units", max_units)):
        for name, number in numbers.items():
            whole = isinstance(number, int | float | np.number) and float(number).is_integer()
            if not whole or isinstance(number, bool) or number < 1:
                raise SearchError(f"{what} {name}: got {number!r}; expected a whole number >= 1")
    levels = [level.name for level in machine.levels[1:]]
    for name in max_units:
        if name not in levels:
            raise SearchError(
                f"max_units {name}: {machine.name} has no such level below its outermost one; "
                f"there are {', '.join(levels)}"
            )
    return Scope(
        tiles=tiles,  # pyright: ignore[reportArgumentType]
        units=units,  # pyright: ignore[reportArgumentType]
        fixed=tuple(sorted((n, int(v)) for n, v in fixed.items())),
        max_units=tuple(sorted((n, int(v)) for n, v in max_units.items())),
    )


def _check_levels(orders: MappingABC[str, str], machine: Machine) -> None:
    known = [level.name for level in machine.levels]
    for level in orders:
        if level not in known:
            there = ", ".join(known)
            raise SearchError(f"loop_orders {level}: {machine.name} has no such level, of {there}")


def _names(
    workload: CompoundOp, wanted: Literal["all"] | Sequence[str], without: Sequence[str]
) -> list[str]:
    """Names of the strategies to try."""
    known = [s.name for s in _strategies.available(workload.name)]
    if isinstance(wanted, str) and wanted != "all":
        wanted = (wanted,)
    for name in (*without, *(() if isinstance(wanted, str) else wanted)):
        _strategies.get(workload.name, name)  # says which there are
    names = [n for n in known if (wanted == "all" or n in wanted) and n not in without]
    if not names:
        raise SearchError(
            f"strategies: {', '.join(without)} left out, none is left; there are {', '.join(known)}"
        )
    return names


def _task(
    workload: CompoundOp,
    machine: Machine,
    found: Sequence[Way],
    objective: Objective,
    conventions: Conventions,
    scope: Scope,
) -> tuple[Task, tuple[WayResult, ...]]:
    """What is searched, the ways in the order of their bounds; and those that are refused."""
    possible: list[tuple[float, Way]] = []
    refused: list[WayResult] = []
    known = _Known(workload, machine, conventions)
    for one in found:
        reason = one.refusal or known.refusal(one)
        if reason:
            refused.append(outcome(one, np.inf, refusal=reason))
            continue
        possible.append((known.bound(one).of(objective), one))
    if not possible:
        reasons = tuple(dict.fromkeys(r.refusal for r in refused))
        raise ImpossibleError(workload.name, machine.name, reasons)
    possible.sort(key=lambda p: p[0])
    task = Task(
        workload=workload,
        machine=machine,
        ways=tuple(w for _, w in possible),
        bounds=tuple(b for b, _ in possible),
        objective=objective,
        conventions=conventions,
        scope=scope,
    )
    return task, tuple(refused)


@dataclass
class _Known:
    """Bounds and refusals of ways; the order of the loops changes neither."""

    workload: CompoundOp
    machine: Machine
    conventions: Conventions
    _refusals: dict[object, str] = field(default_factory=dict)
    _plans: dict[object, Bound] = field(default_factory=dict)
    _forms: dict[tuple[str, ...], Bound] = field(default_factory=dict)

    def _kind(self, one: Way) -> object:
        # an order with slices is another tree, one without only another order
        options = {n: v for n, v in one.options.items() if n != "order" or len(v) > len(set(v))}
        return (one.strategy.name, *sorted(options.items()))

    def refusal(self, one: Way) -> str:
        """Why the machine cannot run a way; empty where it can."""
        kind = self._kind(one)
        if kind not in self._refusals:
            self._refusals[kind] = ""
            try:
                one.check(self.workload, self.machine, self.conventions)
            except MappingError as error:
                self._refusals[kind] = str(error)
        return self._refusals[kind]

    def bound(self, one: Way) -> Bound:
        """What no mapping of a way can go below."""
        kind, plan = self._kind(one), one.plan
        if kind in self._plans:
            return self._plans[kind]
        assert plan is not None
        form = rewritten(self.workload, plan.rewrites)
        if plan.rewrites not in self._forms:
            bound = tree_bound(form, self.machine, conventions=self.conventions)
            self._forms[plan.rewrites] = bound
        units: dict[str, int] | None = {}
        for space in one.spaces:
            more = space.units()
            units = None if units is None or more is None else units | more
        self._plans[kind] = plan_bound(
            form,
            self.machine,
            plan.tree,
            plan.homes,
            spatial=units,
            conventions=self.conventions,
            any_tree=self._forms[plan.rewrites],
        )
        return self._plans[kind]
