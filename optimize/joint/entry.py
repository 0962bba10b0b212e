"""The entry: `codesign(workloads, space, objective=...)`.

The one idea: words are checked and become a `Run`; the run is driven; its answer is priced anew.
"""

import dataclasses
import hashlib
import importlib.metadata
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Mapping as MappingABC
from os import PathLike
from typing import Any, Literal, get_args

import jax

from jaxcomet._version import __version__
from jaxcomet.cost.conventions import DEFAULT, Conventions
from jaxcomet.hardware import numbers
from jaxcomet.optimize.joint.design import DesignError, DesignSpace
from jaxcomet.optimize.joint.files import load_space
from jaxcomet.optimize.joint.objectives import Target, Weighted, aim_of, make_targets
from jaxcomet.optimize.joint.outcome import CodesignResult, result_of
from jaxcomet.optimize.joint.run import METHODS, Effort, Method, Run, chosen, drive, prepare
from jaxcomet.optimize.joint.run import for_evaluations as _for_evaluations
from jaxcomet.optimize.joint.scoring import Across
from jaxcomet.optimize.joint.suite import Suite, make_suite
from jaxcomet.optimize.space import TILES, Tiles
from jaxcomet.workload import CompoundOp

Workloads = Iterable[CompoundOp] | MappingABC[str, CompoundOp]

SEEDS = 32
"""Seeds of the descent for each target, where nothing else is said."""

STEPS = 60
"""Steps of each."""


def codesign(
    workloads: Workloads,
    space: DesignSpace | str | PathLike[str] = "edge",
    *,
    objective: str | Weighted | Sequence[str | Weighted] = "edp",
    across: Across = "geomean",
    budgets: MappingABC[str, float] | Sequence[MappingABC[str, float]] | None = None,
    weights: Sequence[float] | None = None,
    strategies: MappingABC[str, Sequence[str]] | None = None,
    options: MappingABC[str, str] | None = None,
    tiles: Tiles = "padded",
    method: Method | Literal["auto"] = "auto",
    derive_buffers: bool = False,
    seeds: int | None = None,
    steps: int | None = None,
    chains: int = 8,
    evaluations: int | None = None,
    time_limit_s: float | None = None,
    conventions: Conventions = DEFAULT,
    key: int = 0,
    devices: Sequence[Any] | None = None,
    progress: Callable[[Run], None] | None = None,
) -> CodesignResult:
    """The best machine of a space for workloads, with the mappings of all of them.

    Args:
      workloads: single shapes, with names or without.
      space: a search space, its name, or the path of its file (docs/codesign.md).
      objective: what is minimised: ``latency``, ``energy``, ``edp`` or ``edap`` (their products,
        with area), or exponents of latency, energy and area. Several are searched side by side.
      across: how latency and energy are taken over workloads: ``geomean``, ``total`` (weighted sum)
        or ``worst`` (largest ratio to the start machine with its best mappings).
      budgets: other limits of the budgets of the space; several are searched side by side.
      weights: of the workloads; equal if left out.
      strategies: by name of the compound operation, those that may be chosen; all if left out.
      options: of the strategies, as for `optimize.map`; each strategy's default where left out.
      tiles: sizes of tiles, as for `optimize.map`.
      method: ``gradient`` (descent of many seeds, then local moves), ``local``, ``random``, ``cma``
        (CMA-ES over everything), ``nested`` (CMA-ES over machines, all mappings priced on each),
        ``enumerate`` (all machines with all mappings: proven), or ``auto``, which takes the one
        that was measured to be ahead.
      derive_buffers: capacities that the space marks as derived are no choice of the descent; they
        follow from the mappings of each seed as the least that holds what they need.
      seeds: seeds of the descent, over all targets; 32 for each target if left out.
      steps: steps of each.
      chains: chains of local moves for each target.
      evaluations: joint evaluations (a machine with one mapping of each workload, or one gradient)
        to stop after; machines for ``nested`` and ``enumerate``.
      time_limit_s: seconds to stop after, compiling included.
      conventions: rules of accounting.
      key: seed of all randomness; the result depends on nothing else, not on the devices.
      devices: devices of JAX that share the seeds; all if left out.
      progress: called after each batch with the run.

    Returns:
      Machines on the grid with whole mappings, priced by the exact model. Ctrl-C ends the search
      and returns the best so far.

    Raises:
      SearchError: an argument that cannot be.
      InfeasibleError: no machine keeps to the budgets and runs the workloads; says what is missing.
      ImpossibleError: a workload that no strategy can map on these machines.

    Example:
      >>> from jaxcomet.operations import gemm_softmax
      >>> found = codesign([gemm_softmax(64, 64, 64)], "edge-small",
      ...                  strategies={"gemm-softmax": ["fused-gemm-distsm"]})
      >>> found.proven, found.best.texts["dram_bandwidth"]
      (True, '50 byte/cycle')
    """
    space = space if isinstance(space, DesignSpace) else load_space(space)
    targets = make_targets(space, objective, budgets)
    check_choice("across", across, get_args(Across))
    check_choice("tiles", tiles, TILES)
    check_choice("method", method, ("auto", *METHODS))
    suite = make_suite(
        workloads, space.start, weights=weights, strategies=strategies, options=options, tiles=tiles
    )
    effort = make_effort(
        space,
        suite,
        len(targets),
        method=method,
        derive_buffers=derive_buffers,
        seeds=seeds,
        steps=steps,
        chains=chains,
        evaluations=evaluations,
        time_limit_s=time_limit_s,
    )
    run = prepare(
        space,
        suite,
        aim_of(targets, across),
        effort,
        conventions,
        [key],
        None if devices is None else tuple(devices),
    )
    stopped = drive(run, on_step=progress)
    settings = settings_of(
        space, suite, targets, effort, across=across, conventions=conventions, key=key
    )
    return result_of(run, targets, stopped, settings)


def check_choice(name: str, got: str, known: Sequence[str]) -> None:
    """Refuses a word that is none of the known ones."""
    if got not in known:
        raise DesignError(f"{name}: got {got!r}; expected one of {', '.join(known)}")


def make_effort(
    space: DesignSpace,
    suite: Suite,
    targets: int,
    *,
    method: str,
    derive_buffers: bool,
    seeds: int | None,
    steps: int | None,
    chains: int,
    evaluations: int | None,
    time_limit_s: float | None,
) -> Effort:
    """Fills in what was left out, and refuses what cannot be."""
    for name, got in (
        ("seeds", seeds),
        ("steps", steps),
        ("chains", chains),
        ("evaluations", evaluations),
        ("time_limit_s", time_limit_s),
    ):
        if got is not None and not got > 0:
            raise DesignError(f"{name}: got {got}; expected a number above 0")
    picked: Any = chosen(space, suite) if method == "auto" else method
    if derive_buffers and not any(f.derived for f in space.free):
        raise DesignError(
            f"derive_buffers: space {space.name} marks no capacity as derived; expected one"
        )
    if derive_buffers and picked != "gradient":
        raise DesignError(
            f"derive_buffers: got method {picked!r}; only the descent derives capacities; set "
            "method to 'gradient'"
        )
    own_seeds, own_steps = SEEDS * targets, STEPS
    if evaluations is not None:
        own_seeds, own_steps = _for_evaluations(evaluations, targets)
    if seeds is not None and seeds < targets:
        raise DesignError(f"seeds: got {seeds} for {targets} targets; expected one for each")
    return Effort(
        method=picked,
        derive_buffers=derive_buffers,
        seeds=own_seeds if seeds is None else seeds,
        steps=own_steps if steps is None else steps,
        chains=chains,
        evaluations=evaluations,
        seconds=time_limit_s,
    )


def settings_of(
    space: DesignSpace,
    suite: Suite,
    targets: Sequence[Target],
    effort: Effort,
    *,
    across: Across,
    conventions: Conventions,
    key: int,
) -> dict[str, Any]:
    """What is needed to find the same again, as plain data."""
    return {
        "space": space.name,
        "space_digest": space_digest(space),
        "workloads": {
            item.name: {
                "operation": item.workload.name,
                "sizes": {n: float(v) for n, v in item.workload.sizes.items()},  # pyright: ignore[reportArgumentType]
                "weight": item.weight,
            }
            for item in suite.items
        },
        "trees": [tree.way.label for tree in suite.trees],
        "tiles": suite.tiles,
        "targets": [
            {"name": t.name, "exponents": list(t.exponents), "limits": list(t.limits)}
            for t in targets
        ],
        "across": across,
        **dataclasses.asdict(effort),
        "key": key,
        "conventions": dataclasses.asdict(conventions),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of what results depend on."""
    packages = ("jax", "jaxlib", "numpy", "optax", "cma", "moocore")
    return {"jaxcomet": __version__} | {p: importlib.metadata.version(p) for p in packages}


def space_digest(space: DesignSpace) -> str:
    """A digest of all numbers of a space, its machine and its technology."""
    machine = {key: numbers.value(space.start, key) for key in numbers.keys(space.start)}
    parts = (
        sorted(machine.items()),
        [(f.name, f.keys, f.grid, f.derived) for f in space.free],
        [(b.name, b.limit, b.unit) for b in space.budgets],
        [float(x) for x in jax.tree.leaves(space.technology)],
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
