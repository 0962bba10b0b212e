"""A co-design, step by step: whatever the method, each step may be the last.

The one idea: a method is a generator that pauses after every batch of exact scores. Who drives it
shows progress, stops at a limit or at Ctrl-C, and puts the descent away at a round; the best points
are kept apart from all methods.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from jaxcomet.cost.conventions import Conventions
from jaxcomet.optimize.joint.design import DesignSpace
from jaxcomet.optimize.joint.gradient import Descent, advance, begin, polish
from jaxcomet.optimize.joint.incumbents import Incumbents
from jaxcomet.optimize.joint.local import LocalSearch, local_search
from jaxcomet.optimize.joint.nested import Enumerator
from jaxcomet.optimize.joint.relaxation import Relaxation
from jaxcomet.optimize.joint.rivals import cma_es, enumerate_machines, nested, random_search
from jaxcomet.optimize.joint.scoring import Aim, Joint, Points
from jaxcomet.optimize.joint.start import Start, best_on_start
from jaxcomet.optimize.joint.suite import Suite
from jaxcomet.optimize.task import Clock

Method = Literal["gradient", "local", "random", "cma", "nested", "enumerate"]
METHODS: tuple[Method, ...] = get_args(Method)

ENUMERATED = 300_000_000
"""Mappings over all machines up to which ``auto`` proves the answer."""

NESTED = 1_000_000
"""Mappings for one machine up to which ``auto`` enumerates them inside CMA-ES."""

_NESTED_NUMBERS = 12  # free numbers up to which CMA-ES over machines is ahead
_CHAINS = 8  # of local search, for each target


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How, and how long.

    Attributes:
      method: the method.
      seeds: seeds of the descent, over all targets.
      steps: steps of each.
      derive_buffers: capacities follow from the mappings during the descent.
      chains: chains of local moves, for each target.
      evaluations: joint evaluations to stop after; None: when the method ends by itself. With
        ``nested`` and ``enumerate``, whose evaluations price all mappings, machines.
      seconds: to stop after.
    """

    method: Method
    seeds: int
    steps: int
    derive_buffers: bool = False
    chains: int = _CHAINS
    evaluations: int | None = None
    seconds: float | None = None


def for_evaluations(evaluations: int, targets: int = 1) -> tuple[int, int]:
    """Seeds and steps that leave about half of the evaluations to local moves."""
    steps = 24 if evaluations < 600 else 40 if evaluations < 3000 else 60
    each = steps * 1.3 + 4
    return max(targets, min(256 * targets, int(0.5 * evaluations / each))), steps


@dataclass
class Run:
    """A co-design that can be driven step by step.

    Attributes:
      joint: what is searched.
      targets: what is minimised, one row per target.
      effort: how.
      key: numbers that all randomness comes from.
      start: the start machine with its best mappings.
      incumbents: the best so far.
      start_lanes: lanes that finding the start took.
      descent: where the descent stands, of the method ``gradient``.
      relaxation: the relaxed model of the start's trees; its programs serve other runs as well.
      phase: what is being done.
      share: how much of the descent is done.
      devices: devices that share the seeds; all if left out.
      began_s: when it began, by `time.monotonic`.
    """

    joint: Joint
    targets: Aim
    effort: Effort
    key: list[int]
    start: Start
    incumbents: Incumbents
    start_lanes: int
    descent: Descent | None = None
    relaxation: Relaxation | None = None
    phase: str = "start"
    share: float = 0.0
    devices: tuple[object, ...] | None = None
    began_s: float = field(default_factory=time.monotonic)

    @property
    def evaluated(self) -> float:
        """Joint evaluations so far, in the sense of `Effort.evaluations`."""
        return self.joint.evaluated

    @property
    def spent(self) -> str:
        """Why to stop now: ``budget``, ``time`` or nothing."""
        effort = self.effort
        if effort.evaluations is not None and self.evaluated >= effort.evaluations:
            return "budget"
        if effort.seconds is not None and time.monotonic() - self.began_s >= effort.seconds:
            return "time"
        return ""

    def steps(self) -> Iterator[None]:
        """The method, from where it stands; yields where it may be stopped."""
        method = self.effort.method
        self.joint.by_machine = method in ("nested", "enumerate")
        rng = np.random.default_rng([*self.key, 1 << 21])
        match method:
            case "gradient":
                yield from self._gradient()
            case "random":
                self.phase = "random"
                yield from random_search(self.joint, self.targets, rng)
            case "local":
                self.phase = "local moves"
                yield from self._local(rng)
            case "enumerate":
                self.phase = "all machines"
                yield from enumerate_machines(self.joint, self.targets, Enumerator(self.joint))
            case _:
                yield from self._by_target(rng)

    def _by_target(self, rng: np.random.Generator) -> Iterator[None]:
        """CMA-ES, for one target after the other, each with its share of the budget."""
        count = len(self.targets.limits)
        ends = self.effort.evaluations is None and self.effort.seconds is None
        for target in range(count):
            single = self.targets.take(slice(target, target + 1))
            if self.effort.method == "nested":
                search = nested(self.joint, single, rng, Enumerator(self.joint))
            else:
                search = cma_es(self.joint, single, rng)
            self.phase = self.effort.method if count == 1 else f"{self.effort.method} {target + 1}"
            until = self.effort.evaluations
            for _ in search:
                yield
                if until is not None and self.evaluated >= until * (target + 1) / count:
                    break
                if ends and self.evaluated >= _DEFAULT * (target + 1):
                    break

    def _local(self, rng: np.random.Generator) -> Iterator[None]:
        count = len(self.targets.limits)
        rows = np.repeat(np.arange(count), max(1, self.effort.chains))
        aim = self.targets.take(rows)
        points = self.joint.random(rng, aim.limits)
        # the first chain of each target starts from what is known, as some seeds of a descent do
        first = np.flatnonzero(np.diff(rows, prepend=-1))
        known = self.start.points.take(np.zeros(count, dtype=np.int64))
        grid = self.joint.space.within(known.grid, aim.limits[first])
        points.put(first, self.joint.moved(known, grid))
        points, scores = self.joint.fitted(points, self.joint.score(points))
        search = LocalSearch(self.joint, points, scores, aim, rng)
        yield

        def renew(over: np.ndarray, _: LocalSearch) -> tuple[np.ndarray, Points | None]:
            return over, self.joint.random(rng, aim.limits[over])

        yield from local_search(search, self.joint, renew, wide=self._wide)

    @property
    def _wide(self) -> int:
        """Moves of a machine at once: one after the other where evaluations are counted."""
        return 1 if self.effort.evaluations is not None else 16

    def again(self, effort: Effort, key: list[int]) -> "Run":
        """A run that has the start and the programs of this one, and has found nothing else."""
        incumbents = Incumbents.empty(self.joint, self.targets)
        self.joint.seen = incumbents.see
        self.joint.lanes, self.joint.machines = 0, 0
        incumbents.see(self.start.points, self.start.scores)
        return dataclasses.replace(
            self,
            effort=effort,
            key=key,
            incumbents=incumbents,
            relaxation=self.relaxed() if effort.method == "gradient" else self.relaxation,
            descent=None,
            share=0.0,
            began_s=time.monotonic(),
        )

    def relaxed(self) -> Relaxation:
        """The relaxed model, made when it is first asked for."""
        if self.relaxation is None:
            suite = self.joint.suite.only(self.start.descent.tree[0].tolist())
            self.relaxation = Relaxation(
                self.joint, suite, self.targets.across, self.devices, self.effort.derive_buffers
            )
        return self.relaxation

    def _gradient(self) -> Iterator[None]:
        joint, effort = self.joint, self.effort
        relaxation = self.relaxed()
        if self.descent is None:
            self.phase = "draw seeds"
            self.descent = begin(
                joint,
                relaxation,
                self.targets,
                self.start.descent.tree[0],
                seeds=effort.seeds,
                steps=effort.steps,
                key=self.key,
                start=self.start.descent,
            )
            yield
        self.phase = "descend"
        while self.descent.round < self.descent.rounds:
            advance(joint, relaxation, self.targets, self.descent, self.key)
            self.share = self.descent.round / self.descent.rounds
            yield
        self.phase, self.share = "local moves", 1.0
        known = self.start.points
        yield from polish(
            joint, self.targets, self.descent, known, effort.chains, self.key, wide=self._wide
        )


_DEFAULT = 3000
"""Evaluations, or machines, of CMA-ES for a target where no limit is given."""


def prepare(
    space: DesignSpace,
    suite: Suite,
    targets: Aim,
    effort: Effort,
    conventions: Conventions,
    key: list[int],
    devices: tuple[object, ...] | None = None,
) -> Run:
    """A run that has found the start and nothing else."""
    space.check_budgets(targets.limits)
    joint = Joint(
        space=space,
        suite=suite,
        conventions=conventions,
        reference=np.ones((2, len(suite.items))),
    )
    rng = np.random.default_rng([*key, 1 << 22])
    began = time.monotonic()
    start = best_on_start(joint, targets.take(slice(0, 1)), rng)
    joint.reference = np.stack([start.scores.latency[0], start.scores.energy[0]])
    incumbents = Incumbents.empty(joint, targets)
    lanes, joint.lanes, joint.machines = joint.lanes, 0, 0
    joint.seen = incumbents.see
    incumbents.see(start.points, start.scores)
    return Run(
        joint=joint,
        targets=targets,
        effort=effort,
        key=key,
        start=start,
        incumbents=incumbents,
        start_lanes=lanes,
        devices=devices,
        began_s=began,
    )


def chosen(space: DesignSpace, suite: Suite) -> Method:
    """What ``auto`` takes; docs/codesign.md has the measurements behind it.

    A small space is proven. Few numbers with small spaces of mappings go to CMA-ES with all
    mappings enumerated inside; all else to gradients.
    """
    joint = Joint(space, suite, Conventions(), np.ones((2, len(suite.items))))
    each = Enumerator(joint).size(space.start_grid)
    if each * space.size <= ENUMERATED:
        return "enumerate"
    if each <= NESTED and len(space.free) <= _NESTED_NUMBERS:
        return "nested"
    return "gradient"


def drive(run: Run, *, on_step: Callable[[Run], None] | None = None) -> str:
    """Runs to the end, a limit or Ctrl-C.

    A first Ctrl-C ends it after the batch under way, a second one at once.

    Returns:
      Why it ended: ``complete``, ``budget``, ``time`` or ``interrupted``.
    """
    clock = Clock()
    try:
        with clock.heeding_ctrl_c():
            for _ in run.steps():
                if on_step is not None:
                    on_step(run)
                if clock.over():
                    return "interrupted"
                if run.spent:
                    return run.spent
    except KeyboardInterrupt:
        return "interrupted"
    return "complete"
