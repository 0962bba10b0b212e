"""Ranks the strategies of a workload, each at its best mapping.

The one idea: a strategy is judged by its best mapping, found by pricing all of them, in each way
that its options leave open.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxcomet import strategies
from jaxcomet.cli.errors import InputError
from jaxcomet.cli.record import Record, filled, shape
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
    size,
)
from jaxcomet.strategies import Strategy
from jaxcomet.workload import CompoundOp

BASELINE = "unfused"

TRIED = ("weights", "spread", "order")
"""Options of which every value is tried where none is given."""


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


Candidates = tuple[tuple[Strategy, tuple[dict[str, str], ...]], ...]
"""Strategies with the sets of options that are tried for each."""


def candidates(workload: str, options: dict[str, str]) -> Candidates:
    """The strategies of a workload with the sets of options to try.

    Every value of the options in `TRIED`, unless one is given; of others the one given, or the
    default.

    Raises:
      MappingError: a value that a strategy does not know.
    """
    found = []
    for strategy in strategies.available(workload):
        own = {n: v for n, v in options.items() if n in strategy.options}
        strategy.chosen(own)
        free = [n for n in TRIED if n in strategy.options and n not in own]
        values = itertools.product(*(strategy.options[n] for n in free))
        found.append((strategy, tuple({**dict(zip(free, v, strict=True)), **own} for v in values)))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A strategy with one set of options.

    Attributes:
      strategy: the strategy.
      options: its options.
      size: its mappings.
      refusal: why the machine has none; empty where it has some.
    """

    strategy: Strategy
    options: dict[str, str]
    size: int
    refusal: str = ""


def ways(setting: Setting, machine: Machine) -> tuple[Way, ...]:
    """All that `rank` prices."""
    workload = setting.operation()
    found = []
    for strategy, tried in candidates(setting.workload, setting.options):
        for options in tried:
            try:
                number, refusal = size(workload, machine, strategy, **options), ""
            except MappingError as error:
                number, refusal = 0, str(error)
            found.append(Way(strategy=strategy, options=options, size=number, refusal=refusal))
    return tuple(found)


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
      tried: its `ways`, where they are known.

    Raises:
      InputError: the machine has no mapping of any strategy.
    """
    workload = setting.operation()
    found: dict[str, list[Entry]] = {}
    refusals: dict[str, str] = {}
    for way in tried or ways(setting, machine):
        entries = found.setdefault(way.strategy.name, [])
        left = way.size

        def advance(priced: int) -> None:
            nonlocal left
            left -= priced
            if progress is not None:
                progress(priced)

        try:
            if way.refusal:
                raise MappingError(way.refusal)
            best = enumerate_mappings(
                workload,
                machine,
                way.strategy,
                options=way.options,
                conventions=conventions,
                objective=setting.objective,
                progress=advance,
            )
        except MappingError as error:
            refusals.setdefault(way.strategy.name, str(error))
            advance(left)
            continue
        entries.append(
            Entry(
                name=way.strategy.name,
                label=way.strategy.label(way.options),
                options=way.strategy.chosen(way.options),
                best=best,
            )
        )
    chosen = [
        min(entries, key=lambda e: (not e.feasible, e.key(setting.objective)))
        for entries in found.values()
        if entries
    ]
    impossible = {name: refusals[name] for name, entries in found.items() if not entries}
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
