"""A single evaluation as JSON: what `--json` prints is what `--mapping` reads.

The one idea: a record holds everything that the number depends on (workload with sizes and options,
strategy with options and loop orders, factors, machine with changes, conventions), so that pricing
it again gives the same number.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from jaxcomet import strategies
from jaxcomet.cli.errors import InputError, near
from jaxcomet.cli.options import choose_conventions, load_machine, pairs
from jaxcomet.cli.tables import count, whole
from jaxcomet.cost import Cost, evaluate
from jaxcomet.cost.result import CollectiveEntry
from jaxcomet.hardware.machine import Machine
from jaxcomet.mapping import Mapping
from jaxcomet.operations import catalog
from jaxcomet.operations.catalog import OptionValue
from jaxcomet.workload import CompoundOp


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is priced, in the words of the command line.

    Attributes:
      workload: name of the compound operation.
      sizes: its sizes by name.
      workload_options: its options by name.
      strategy: name of the strategy.
      options: options of the strategy that were chosen.
      machine: name or file of the machine.
      machine_overrides: changes of its numbers, PATH=VALUE.
      preset: preset of the conventions.
      convention_options: rules that differ from the preset.
      factors: factors by name; those left out are 1.
      loop_orders: dimensions of the loops in time by level, outermost first, where they are not in
        the strategy's own order.
    """

    workload: str
    sizes: dict[str, float]
    workload_options: dict[str, OptionValue]
    strategy: str
    options: dict[str, str]
    machine: str
    machine_overrides: tuple[str, ...]
    preset: str
    convention_options: dict[str, str]
    factors: dict[str, float]
    loop_orders: dict[str, str] = field(default_factory=dict)

    def operation(self) -> CompoundOp:
        """The compound operation."""
        return catalog.find(self.workload).build(self.sizes, self.workload_options)

    def as_dict(self, cost: Cost) -> dict[str, Any]:
        """The record with its cost and its collectives, as plain data."""
        return {
            "workload": self.workload,
            "sizes": {n: whole(s) for n, s in self.sizes.items()},
            "workload_options": self.workload_options,
            "strategy": self.strategy,
            "options": self.options,
            "loop_orders": self.loop_orders,
            "machine": self.machine,
            "machine_overrides": list(self.machine_overrides),
            "conventions": {"preset": self.preset, "options": self.convention_options},
            "factors": {n: whole(f) for n, f in self.factors.items()},
            "cost": cost.as_dict(),
            "collectives": [dataclasses.asdict(c) for c in exchanges(cost)],
        }


def exchanges(cost: Cost) -> list[CollectiveEntry]:
    """The collectives of a single mapping in which more than one unit takes part."""
    return [c for c in cost.collective_list() if c.participants > 1]


def title(
    workload: str, sizes: dict[str, float], options: dict[str, OptionValue], machine: str
) -> str:
    """What is priced, and where, in a line.

    Example:
      >>> title("gemm-layernorm", {"M": 1.0, "N": 1e3, "K": 128.0}, {"norm": "rms"}, "edge")
      'gemm-layernorm M 1 × N 1,000 × K 128, norm=rms on edge'
    """
    entry = catalog.find(workload)
    words = [f"{name} {count(size)}" for name, size in filled(workload, sizes).items()]
    changed = entry.changed(options)
    if len(entry.required) == len(entry.sizes):
        words = [" × ".join(words)]
    return f"{workload} {', '.join([*words, *changed])} on {machine}"


def shape(workload: str, sizes: dict[str, float], options: dict[str, OptionValue]) -> list[str]:
    """Sizes and changed options in short, in pieces between which a line may break.

    Example:
      >>> shape("attention", {"heads": 12.0, "q": 256.0, "head_dim": 64.0}, {"causal": True})
      ['1x12/12 ', '256x256', 'x64', ' causal']
    """
    entry = catalog.find(workload)
    numbers = {name: f"{size:.0f}" for name, size in filled(workload, sizes).items()}
    pieces = [piece.format(**numbers) for piece in entry.form]
    return [*pieces, *(f" {word}" for word in entry.changed(options))]


def filled(workload: str, sizes: dict[str, float]) -> dict[str, float]:
    """All sizes of a workload as numbers, defaults filled in."""
    found = catalog.find(workload).filled(sizes)
    return {name: float(size) for name, size in found.items()}  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, kw_only=True)
class Priced:
    """A record with what it was built into."""

    record: Record
    machine: Machine
    mapping: Mapping
    cost: Cost


def price(record: Record) -> Priced:
    """Prices one record exactly.

    Raises:
      MachineFileError: the machine or a change of it cannot be used.
      WorkloadError: sizes or options that the workload does not take.
      MappingError: an unknown strategy, option, loop order or factor, or factors that do not cover
        the sizes.
      ConventionError: an unknown preset, rule or value.
    """
    strategy = strategies.get(record.workload, record.strategy)
    rules = choose_conventions(record.preset, record.convention_options)
    machine = load_machine(record.machine, record.machine_overrides)
    workload = record.operation()
    mapping = strategy.build(
        workload, machine, record.factors, record.loop_orders, **record.options
    )
    cost = evaluate(workload, mapping, machine, conventions=rules)
    complete = dataclasses.replace(
        record,
        sizes=filled(record.workload, record.sizes),
        workload_options=catalog.find(record.workload).chosen(record.workload_options),
        options=strategy.chosen(record.options),
        factors={n: float(f) for n, f in mapping.factors.items()},  # pyright: ignore[reportArgumentType]
    )
    return Priced(record=complete, machine=machine, mapping=mapping, cost=cost)


def record_from_json(label: str, text: str, workload: str, strategy: str | None = None) -> Record:
    """The record in the JSON that `evaluate`, `map` or `compare` printed.

    Args:
      label: name of the file for messages.
      text: its content.
      workload: the workload that it must be of.
      strategy: which entry to take from the ranking of `compare`; the best if None.

    Raises:
      InputError: no JSON, or not one of a mapping; the message names the key.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{label}: line {error.lineno}, column {error.colno}: no valid JSON ({error.msg}); "
            "expected what `jaxcomet evaluate ... --json` prints"
        ) from None
    if not isinstance(data, dict):
        raise _wrong(label, "top level", data, "an object")
    if "shapes" in data:
        raise InputError(
            f"{label}: got the comparison of several shapes; expected one mapping, or the "
            "comparison of one shape"
        )
    if "ranking" in data:
        data = _from_ranking(label, data["ranking"], strategy)
    return _record(label, data, workload)


def _from_ranking(label: str, ranking: object, strategy: str | None) -> dict[str, Any]:
    entries = ranking if isinstance(ranking, list) else []
    entries = [e for e in entries if isinstance(e, dict)]
    if not entries:
        raise _wrong(label, "ranking", ranking, "a list of mappings")
    if strategy is None:
        return entries[0]
    for entry in entries:
        if entry.get("strategy") == strategy:
            return entry
    known = [str(e.get("strategy")) for e in entries]
    raise InputError(f"{label}: ranking: got no strategy {strategy!r}; {near(strategy, known)}")


def _record(label: str, data: dict[str, Any], workload: str) -> Record:
    known = {
        "workload",
        "sizes",
        "strategy",
        "options",
        "machine",
        "machine_overrides",
        "conventions",
        "factors",
    }
    for key in sorted(known - {"options", "machine_overrides", "conventions"}):
        if key not in data:
            raise InputError(f"{label}: {key}: missing; expected it beside {', '.join(data)}")
    name = _text(label, "workload", data["workload"])
    if name != workload:
        raise InputError(f"{label}: workload: got {name!r}; expected {workload!r}")
    rules = data.get("conventions", {"preset": "default"})
    if not isinstance(rules, dict):
        raise _wrong(label, "conventions", rules, 'an object such as {"preset": "default"}')
    overrides = data.get("machine_overrides", [])
    if not isinstance(overrides, list) or not all(isinstance(o, str) for o in overrides):
        raise _wrong(label, "machine_overrides", overrides, "a list of PATH=VALUE texts")
    return Record(
        workload=workload,
        sizes=_sizes(label, workload, data["sizes"]),
        workload_options=_options(label, workload, data.get("workload_options", {})),
        strategy=_text(label, "strategy", data["strategy"]),
        options=_texts(label, "options", data.get("options", {})),
        machine=_text(label, "machine", data["machine"]),
        machine_overrides=tuple(overrides),
        preset=_text(label, "conventions.preset", rules.get("preset", "default")),
        convention_options=_texts(label, "conventions.options", rules.get("options", {})),
        factors=_numbers(label, "factors", data["factors"]),
        loop_orders=_texts(label, "loop_orders", data.get("loop_orders", {})),
    )


def _sizes(label: str, workload: str, value: object) -> dict[str, float]:
    entry = catalog.find(workload)
    sizes = _numbers(label, "sizes", value)
    names = [s.name for s in entry.sizes]
    for name in sizes:
        if name not in names:
            raise InputError(
                f"{label}: sizes.{name}: no size of {workload}; it has {', '.join(names)}"
            )
    for name in entry.required:
        if name not in sizes:
            raise InputError(
                f"{label}: sizes.{name}: missing; expected {', '.join(entry.required)}"
            )
    return sizes


def _options(label: str, workload: str, value: object) -> dict[str, OptionValue]:
    if not isinstance(value, dict):
        raise _wrong(label, "workload_options", value, "an object of options")
    known = {o.name: o for o in catalog.find(workload).options}
    for name, chosen in value.items():
        key = f"workload_options.{name}"
        if name not in known:
            raise InputError(
                f"{label}: {key}: no option of {workload}; it has {', '.join(known) or 'none'}"
            )
        if not known[name].allows(chosen):
            raise _wrong(label, key, chosen, known[name].allowed)
    return value


def _wrong(label: str, key: str, got: object, expected: str) -> InputError:
    return InputError(f"{label}: {key}: got {json.dumps(got)[:60]}; expected {expected}")


def _text(label: str, key: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(label, key, value, "a text")
    return value


def _texts(label: str, key: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _wrong(label, key, value, "an object of texts")
    return {name: _text(label, f"{key}.{name}", text) for name, text in value.items()}


def _numbers(label: str, key: str, value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        raise _wrong(label, key, value, "an object of numbers")
    found: dict[str, float] = {}
    for name, number in value.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise _wrong(label, f"{key}.{name}", number, "a whole number >= 1")
        if not 1 <= number <= 2**53 or number != int(number):
            raise _wrong(label, f"{key}.{name}", number, "a whole number from 1 to 2**53")
        found[name] = float(number)
    return found


def changed(
    record: Record,
    *,
    sizes: dict[str, float],
    workload_options: dict[str, OptionValue],
    options: dict[str, str],
    machine: str | None,
    overrides: list[str],
    preset: str | None,
    convention_options: dict[str, str],
    factors: dict[str, float],
    loop_orders: dict[str, str],
) -> Record:
    """A record with what the command line says instead; the command line wins.

    A machine that is named drops the record's changes of its own machine, a preset that is named
    drops the record's single rules.
    """
    own = pairs("--set", overrides)
    kept = () if machine else record.machine_overrides
    merged = {**pairs("machine_overrides", kept), **own}
    rules = convention_options if preset else {**record.convention_options, **convention_options}
    return dataclasses.replace(
        record,
        sizes={**record.sizes, **sizes},
        workload_options={**record.workload_options, **workload_options},
        options={**record.options, **options},
        machine=machine or record.machine,
        machine_overrides=tuple(f"{path}={value}" for path, value in merged.items()),
        preset=preset or record.preset,
        convention_options=rules,
        factors={**record.factors, **factors},
        loop_orders={**record.loop_orders, **loop_orders},
    )
