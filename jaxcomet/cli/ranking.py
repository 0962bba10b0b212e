"""Ranks the strategies of a workload, each at its best mapping, and says why the best wins.

The one idea: a strategy is judged by its best mapping, found by pricing all of them; the reason is
read off the difference of two breakdowns, never written beforehand.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jaxcomet import operations, strategies
from jaxcomet.cli import tables
from jaxcomet.cli.record import DIMENSIONS, Record
from jaxcomet.cost import Cost
from jaxcomet.cost.conventions import Conventions
from jaxcomet.explain import limiting as largest_share
from jaxcomet.hardware.machine import Machine, MatrixEngine
from jaxcomet.optimize.enumeration import (
    Best,
    Objective,
    enumerate_mappings,
    objective_keys,
    size,
)
from jaxcomet.plot.groups import latency_details
from jaxcomet.strategies import Strategy
from jaxcomet.workload import CompoundOp

BASELINE = "unfused"

_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is compared, in the words of the command line.

    Attributes:
      workload: name of the compound operation.
      sizes: extent of each loop dimension.
      machine: name or file of the machine.
      machine_overrides: changes of its numbers, PATH=VALUE.
      preset: preset of the conventions.
      convention_options: rules that differ from the preset.
      objective: what is minimised.
      options: options for the strategies that have them (reduce, binding).
    """

    workload: str
    sizes: dict[str, float]
    machine: str
    machine_overrides: tuple[str, ...]
    preset: str
    convention_options: dict[str, str]
    objective: Objective
    options: dict[str, str]

    def operation(self) -> CompoundOp:
        """The compound operation of this shape."""
        return operations.gemm_softmax(*(self.sizes[d] for d in DIMENSIONS))

    @property
    def shape(self) -> str:
        """The sizes in a word, e.g. 256x256x128."""
        return "x".join(f"{self.sizes[d]:.0f}" for d in DIMENSIONS)


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
            sizes=setting.sizes,
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
    """

    setting: Setting
    machine: Machine
    ranked: tuple[Entry, ...]
    infeasible: tuple[Entry, ...]

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
    """The strategies of a workload with the options to try: both ways to hold the weights.

    Raises:
      MappingError: a value that no strategy knows.
    """
    found = []
    for strategy in strategies.available(workload):
        own = {n: v for n, v in options.items() if n in strategy.options}
        strategy.chosen(own)
        ways = [{"weights": way, **own} for way in strategy.options.get("weights", ())]
        found.append((strategy, tuple(ways or [own])))
    return tuple(found)


def total(setting: Setting, machine: Machine) -> int:
    """Number of mappings that `rank` prices."""
    workload = setting.operation()
    return sum(
        size(workload, machine, strategy, **options)
        for strategy, ways in candidates(setting.workload, setting.options)
        for options in ways
    )


def rank(
    setting: Setting,
    machine: Machine,
    conventions: Conventions,
    progress: Callable[[int], None] | None = None,
) -> Ranking:
    """Prices all mappings of all strategies and ranks the strategies.

    Args:
      setting: what is compared.
      machine: its machine, loaded.
      conventions: its rules.
      progress: called with the number of mappings priced since the last call.
    """
    workload = setting.operation()
    entries = []
    for strategy, ways in candidates(setting.workload, setting.options):
        tried = []
        for options in ways:
            best = enumerate_mappings(
                workload,
                machine,
                strategy,
                options=options,
                conventions=conventions,
                objective=setting.objective,
                progress=progress,
            )
            tried.append(
                Entry(
                    name=strategy.name,
                    label=strategy.label(options),
                    options=strategy.chosen(options),
                    best=best,
                )
            )
        entries.append(min(tried, key=lambda e: (not e.feasible, e.key(setting.objective))))
    ranked = sorted((e for e in entries if e.feasible), key=lambda e: e.key(setting.objective))
    return Ranking(
        setting=setting,
        machine=machine,
        ranked=tuple(ranked),
        infeasible=tuple(e for e in entries if not e.feasible),
    )


def limiting(entry: Entry, machine: Machine) -> tuple[str, float]:
    """The largest share of the latency: its name and its cycles."""
    kind, where, share = largest_share(entry.cost)
    cycles = share * float(entry.cost.latency_cycles)  # pyright: ignore[reportArgumentType]
    if kind == "compute":
        matrix = isinstance(machine.engines[where], MatrixEngine)
        return ("matrix compute" if matrix else "vector compute"), cycles
    return (where if kind == "collective" else f"{kind} at {where}"), cycles


def _place(group: str, where: str) -> str:
    if group in ("CS", "OS", "CF"):
        return f"{group} at {where}"
    return where if group == "collectives" else f"{group} ({where})"


def why(ranking: Ranking) -> list[str]:
    """Sentences that say what the best does better than the runner-up and than the baseline."""
    if not ranking.ranked:
        return ["No strategy has a mapping that fits this machine."]
    best, *others = ranking.ranked
    rivals = others[:1]
    rivals += [e for e in others[1:] if e.name == BASELINE]
    if not rivals:
        return [f"{best.label} is the only strategy that fits this machine."]
    sentences = []
    for rival in rivals:
        role = "the runner-up " if rival is others[0] else ""
        if ranking.setting.objective in ("latency", "edp"):
            sentences.append(
                _difference(
                    best.label,
                    f"{role}{rival.label}",
                    _named(latency_details(best.cost, ranking.machine)),
                    _named(latency_details(rival.cost, ranking.machine)),
                    lambda cycles: f"{tables.count(abs(cycles))} cycles",
                    ("fewer", "more"),
                )
            )
        if ranking.setting.objective in ("energy", "edp"):
            sentences.append(
                _difference(
                    best.label,
                    f"{role}{rival.label}",
                    _energies(best.cost),
                    _energies(rival.cost),
                    lambda value: tables.energy(abs(value)),
                    ("less", "more"),
                )
            )
    return sentences


def _named(details: dict[tuple[str, str], float]) -> dict[str, float]:
    return {_place(group, where): cycles for (group, where), cycles in details.items()}


def _energies(cost: Cost) -> dict[str, float]:
    return {n: float(v) for n, v in cost.energy_parts.items()}  # pyright: ignore[reportArgumentType]


def _difference(
    best: str,
    rival: str,
    ours: dict[str, float],
    theirs: dict[str, float],
    amount: Callable[[float], str],
    words: tuple[str, str],
) -> str:
    """One sentence on which parts shrank and which grew; the parts named sum to the difference."""
    names = dict.fromkeys((*ours, *theirs))
    changes = {n: ours.get(n, 0.0) - theirs.get(n, 0.0) for n in names}
    saved, difference = sum(theirs.values()), sum(changes.values())
    share = tables.percent(abs(difference), saved)
    word = words[0] if difference <= 0 else words[1]
    text = f"{best} takes {amount(difference)} {word} than {rival} ({share})"
    order = sorted((n for n in changes if changes[n]), key=lambda n: -abs(changes[n]))
    if not order:
        return f"{best} and {rival} take the same."
    shown, rest = order[:_SHOWN], order[_SHOWN:]
    parts = [_signed(n, changes[n], amount) for n in shown]
    if rest:
        parts.append(_signed(_several(rest), sum(changes[n] for n in rest), amount))
    return f"{text}: {', '.join(parts)}."


def _signed(name: str, value: float, amount: Callable[[float], str]) -> str:
    return f"{name} {'+' if value > 0 else '-'}{amount(value)}"


def _several(names: Iterable[str]) -> str:
    count = len(list(names))
    return "one other part" if count == 1 else f"{count} other parts"
