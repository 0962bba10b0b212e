"""Ranks the strategies of a workload, each at its best mapping.

The one idea: a strategy is judged by its best mapping, found by pricing all of them, in each way
that its options leave open.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from jaxcomet import strategies
from jaxcomet.cli.errors import InputError
from jaxcomet.cli.record import Record, filled, shape
from jaxcomet.cli.ways import Way, candidates, ways
from jaxcomet.cost import Cost
from jaxcomet.cost.conventions import Conventions
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import MappingError
from jaxcomet.operations import catalog
from jaxcomet.operations.catalog import OptionValue
from jaxcomet.optimize.enumeration import (
    Best,
    Objective,
    enumerate_mappings,
    objective_keys,
)
from jaxcomet.workload import CompoundOp

BASELINE = "unfused"

_THREADS = min(2, os.cpu_count() or 1)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is compared, in the words of the command line.

    Attributes:
      workload: name of the compound operation.
      sizes: its sizes by name.
      workload_options: its options by name.
      machine: name or file of the machine.
      machine_overrides: changes of its numbers, PATH=VALUE.
      preset: preset of the conventions.
      convention_options: rules that differ from the preset.
      objective: what is minimised.
      options: options for the strategies that have them.
    """

    workload: str
    sizes: dict[str, float]
    workload_options: dict[str, OptionValue]
    machine: str
    machine_overrides: tuple[str, ...]
    preset: str
    convention_options: dict[str, str]
    objective: Objective
    options: dict[str, str]

    def operation(self) -> CompoundOp:
        """The compound operation of this shape."""
        return catalog.find(self.workload).build(self.sizes, self.workload_options)

    @property
    def shape(self) -> str:
        """The sizes in a word, e.g. 256x256x128, and options that are not the defaults."""
        return "".join(shape(self.workload, self.sizes, self.workload_options))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A strategy at its best mapping.

    Attributes:
      name: name of the strategy.
      label: the name with its options.
      options: the options.
      best: its best mapping; the one nearest to fitting if none fits.
    """

    name: str
    label: str
    options: dict[str, str]
    best: Best

    @property
    def cost(self) -> Cost:
        """Cost of the best mapping."""
        return self.best.cost

    @property
    def feasible(self) -> bool:
        """Whether the best mapping can run."""
        return bool(self.cost.feasible)

    @property
    def latency_cycles(self) -> float:
        """Latency of the best mapping."""
        return float(self.cost.latency_cycles)  # pyright: ignore[reportArgumentType]

    @property
    def energy_pj(self) -> float:
        """Energy of the best mapping."""
        return float(self.cost.energy_pj)  # pyright: ignore[reportArgumentType]

    def key(self, objective: Objective) -> tuple[float, float]:
        """What is minimised, then what decides a tie."""
        return objective_keys(objective, self.latency_cycles, self.energy_pj)

    def record(self, setting: Setting) -> Record:
        """The best mapping as a record that `jaxcomet evaluate --mapping` reads."""
        return Record(
            workload=setting.workload,
            sizes=filled(setting.workload, setting.sizes),
            workload_options=catalog.find(setting.workload).chosen(setting.workload_options),
            strategy=self.name,
            options=self.options,
            machine=setting.machine,
            machine_overrides=setting.machine_overrides,
            preset=setting.preset,
            convention_options=setting.convention_options,
            factors={n: float(f) for n, f in self.best.mapping.factors.items()},  # pyright: ignore[reportArgumentType]
        )


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The strategies in order.

    Attributes:
      setting: what was compared.
      machine: the machine, loaded.
      ranked: those that can run, best first.
      infeasible: those that cannot.
      impossible: strategies that this machine has no mapping of, with the reason.
    """

    setting: Setting
    machine: Machine
    ranked: tuple[Entry, ...]
    infeasible: tuple[Entry, ...]
    impossible: dict[str, str]

    @property
    def has_baseline(self) -> bool:
        """Whether the workload has a baseline to compare with, be it one that cannot run."""
        return BASELINE in [s.name for s in strategies.available(self.setting.workload)]

    def entry(self, name: str) -> Entry | None:
        """The ranked entry of a strategy, None where it cannot run."""
        return next((e for e in self.ranked if e.name == name), None)

    def speedup(self, entry: Entry) -> float | None:
        """Latency of the baseline / latency of the entry; None without a baseline."""
        baseline = self.entry(BASELINE)
        return None if baseline is None else baseline.latency_cycles / entry.latency_cycles

    def energy_ratio(self, entry: Entry) -> float | None:
        """Energy of the baseline / energy of the entry; None without a baseline."""
        baseline = self.entry(BASELINE)
        return None if baseline is None else baseline.energy_pj / entry.energy_pj


def ways_of(setting: Setting, machine: Machine) -> tuple[Way, ...]:
    """All that `rank` prices."""
    tried = candidates(setting.workload, setting.options)
    return ways(setting.operation(), machine, tried)


def rank(
    setting: Setting,
    machine: Machine,
    conventions: Conventions,
    progress: Callable[[int], None] | None = None,
    tried: Sequence[Way] | None = None,
) -> Ranking:
    """Prices all mappings of all strategies and ranks the strategies.

    Args:
      setting: what is compared.
      machine: its machine, loaded.
      conventions: its rules.
      progress: called with the number of mappings priced since the last call.
      tried: its ways, where they are known.

    Raises:
      InputError: the machine has no mapping of any strategy.
    """
    tried = tried or ways_of(setting, machine)
    workload = setting.operation()

    def search(way: Way) -> Entry | str:
        return _search(workload, machine, way, conventions, setting.objective, progress)

    # most of the time goes to compiling, one program a way, which runs beside another's pricing
    pool = ThreadPoolExecutor(_THREADS)
    try:
        found = list(pool.map(search, tried))
    finally:
        pool.shutdown(cancel_futures=True)
    entries: dict[str, list[Entry]] = {way.strategy.name: [] for way in tried}
    refusals: dict[str, str] = {}
    for way, result in zip(tried, found, strict=True):
        if isinstance(result, Entry):
            entries[way.strategy.name].append(result)
        else:
            refusals.setdefault(way.strategy.name, result)
    chosen = [
        min(some, key=lambda e: (not e.feasible, e.key(setting.objective)))
        for some in entries.values()
        if some
    ]
    impossible = {name: refusals[name] for name, some in entries.items() if not some}
    if not chosen:
        reasons = "; ".join(dict.fromkeys(impossible.values()))
        raise InputError(
            f"{setting.workload}: no strategy is possible on {machine.name}: {reasons}"
        )
    ranked = sorted((e for e in chosen if e.feasible), key=lambda e: e.key(setting.objective))
    return Ranking(
        setting=setting,
        machine=machine,
        ranked=tuple(ranked),
        infeasible=tuple(e for e in chosen if not e.feasible),
        impossible=impossible,
    )


def _search(
    workload: CompoundOp,
    machine: Machine,
    way: Way,
    conventions: Conventions,
    objective: Objective,
    progress: Callable[[int], None] | None,
) -> Entry | str:
    """The best mapping of a way, or why there is none."""
    left = way.size

    def advance(priced: int) -> None:
        nonlocal left
        left -= priced
        if progress is not None:
            progress(priced)

    if way.refusal:
        return way.refusal
    try:
        best = enumerate_mappings(
            workload,
            machine,
            way.strategy,
            options=way.options,
            conventions=conventions,
            objective=objective,
            progress=advance,
        )
    except MappingError as error:
        advance(left)
        return str(error)
    return Entry(
        name=way.strategy.name,
        label=way.strategy.label(way.options),
        options=way.strategy.chosen(way.options),
        best=best,
    )
