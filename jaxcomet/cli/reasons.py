"""Why the best strategy wins, and what would make it faster, in sentences.

The one idea: a reason is the difference of two breakdowns, read off and never written beforehand.
"""

from collections.abc import Callable, Iterable

from jaxcomet import strategies
from jaxcomet.cli import tables
from jaxcomet.cli.ranking import BASELINE, Entry, Ranking
from jaxcomet.cost import Cost, evaluate
from jaxcomet.explain import limiting as largest_share
from jaxcomet.hardware.machine import Machine, MatrixEngine
from jaxcomet.plot.groups import latency_details

_SHOWN = 4


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
    sentences = [] if rivals else [f"{best.label} is the only strategy that fits this machine."]
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
    return sentences + _faster_exchanges(ranking, best)


def _faster_exchanges(ranking: Ranking, best: Entry) -> list[str]:
    """What the best mapping would take if each collective were done in the fastest way."""
    setting = ranking.setting
    strategy = strategies.get(setting.workload, best.name)
    if "algorithm" not in strategy.options or "algorithm" in setting.options:
        return []
    workload, options = setting.operation(), {**best.options, "algorithm": "auto"}
    factors = best.mapping.factors
    mapping = strategy.build(workload, ranking.machine, factors, **options)
    cost = evaluate(workload, mapping, ranking.machine, conventions=best.cost.conventions)
    cycles = float(cost.latency_cycles)  # pyright: ignore[reportArgumentType]
    if not cost.feasible or cycles >= best.latency_cycles:
        return []
    saved = best.latency_cycles - cycles
    ways = dict.fromkeys(
        f"{c.kind} of {c.tensor} by {c.algorithm}"
        for c in cost.collectives
        if float(c.participants) > 1  # pyright: ignore[reportArgumentType]
    )
    return [
        f"With --algorithm auto the same mapping takes {tables.count(cycles)} cycles, "
        f"{tables.count(saved)} fewer ({tables.percent(saved, best.latency_cycles)}): "
        f"{', '.join(ways)}."
    ]


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
