"""Ranks the strategies of a workload, each at its best mapping.

The one idea: a strategy is judged by its best mapping, found by pricing all of them, in each way
that its options leave open.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxcomet import optimize, strategies
from jaxcomet.cli.errors import InputError
from jaxcomet.cli.record import Record, filled, shape
from jaxcomet.cost import Cost
from jaxcomet.cost.conventions import Conventions
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Mapping, MappingError
from jaxcomet.operations import catalog
from jaxcomet.operations.catalog import OptionValue
from jaxcomet.optimize.pricing import Objective, objective_keys
from jaxcomet.optimize.ways import TRIED, candidates
from jaxcomet.strategies import Strategy
from jaxcomet.workload import CompoundOp

BASELINE = "unfused"


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
      mapping: its best mapping; the one nearest to fitting if none fits.
      cost: the exact cost of that mapping.
      evaluated: mappings priced, of all its ways.
      proven: no other mapping of the strategy is better.
      gap: objective / lower bound of all mappings of the workload - 1.
    """

    name: str
    label: str
    options: dict[str, str]
    mapping: Mapping
    cost: Cost
    evaluated: int
    proven: bool
    gap: float

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
            factors={n: float(f) for n, f in self.mapping.factors.items()},  # pyright: ignore[reportArgumentType]
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


def rank(
    setting: Setting,
    machine: Machine,
    conventions: Conventions,
    progress: Callable[[str, float], None] | None = None,
) -> Ranking:
    """Prices all mappings of all strategies and ranks the strategies.

    Args:
      setting: what is compared.
      machine: its machine, loaded.
      conventions: its rules.
      progress: called with a strategy and the share of it that is done.

    Raises:
      InputError: the machine has no mapping of any strategy.
      KeyboardInterrupt: the search was interrupted; what is not proven is not compared.
    """
    workload = setting.operation()
    candidates(setting.workload, setting.options)  # refuses a value that no strategy has
    chosen: list[Entry] = []
    impossible: dict[str, str] = {}
    for strategy in strategies.available(setting.workload):

        def advance(done: int, most: int, name: str = strategy.name) -> None:
            if progress is not None:
                progress(name, done / max(most, 1))

        found = _search(workload, machine, strategy, conventions, setting, advance)
        advance(1, 1)
        if isinstance(found, Entry):
            chosen.append(found)
        else:
            impossible[strategy.name] = found
    if not chosen:
        reasons = "; ".join(dict.fromkeys(impossible.values()))
        raise InputError(f"{workload.name}: no strategy is possible on {machine.name}: {reasons}")
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
    strategy: Strategy,
    conventions: Conventions,
    setting: Setting,
    progress: Callable[[int, int], None],
) -> Entry | str:
    """The best mapping of a strategy, or why there is none."""
    options = {n: values[0] for n, values in strategy.options.items() if n not in TRIED}
    given = {n: value for n, value in setting.options.items() if n in strategy.options}
    try:
        found = optimize.map(
            workload,
            machine,
            objective=setting.objective,
            strategies=(strategy.name,),
            options={**options, **given},
            method="enumerate",
            conventions=conventions,
            progress=progress,
        )
    except MappingError as error:  # a value that other strategies have
        return str(error)
    except optimize.ImpossibleError as error:
        return "; ".join(error.reasons)
    if found.stopped == "interrupted":
        raise KeyboardInterrupt
    return Entry(
        name=found.strategy,
        label=found.label,
        options=found.options,
        mapping=found.mapping,
        cost=found.cost,
        evaluated=found.evaluated,
        proven=found.proven,
        gap=found.gap,
    )
