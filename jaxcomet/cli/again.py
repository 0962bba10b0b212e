"""The command line that prices a mapping again."""

import shlex

from jaxcomet import strategies
from jaxcomet.cli.flags import flag
from jaxcomet.cli.record import Record
from jaxcomet.cli.tables import exact
from jaxcomet.operations import catalog

_WIDTH = 96


def command(record: Record) -> str:
    """The `jaxcomet evaluate` that prices a record, in lines that a shell reads as one.

    What holds anyway is left out: sizes and options at their defaults, factors of 1.
    """
    entry = catalog.find(record.workload)
    words = ["jaxcomet evaluate", entry.name, f"--strategy {record.strategy}"]
    words.append(f"--machine {shlex.quote(record.machine)}")
    words += [f"--set {shlex.quote(change)}" for change in record.machine_overrides]
    for size in entry.sizes:
        value = record.sizes[size.name]
        default = record.sizes[size.default] if isinstance(size.default, str) else size.default
        if value != default:
            words.append(f"{flag(size.name)} {exact(value)}")
    for option in entry.options:
        value = record.workload_options[option.name]
        if value != option.default:
            words.append(flag(option.name) if value is True else f"{flag(option.name)} {value}")
    known = strategies.get(record.workload, record.strategy).options
    words += [f"{flag(n)} {v}" for n, v in record.options.items() if v != known[n][0]]
    words += [f"--loop-order {level}={dims}" for level, dims in record.loop_orders.items()]
    words += [f"--factor {n}={exact(f)}" for n, f in record.factors.items() if f != 1.0]
    if record.preset != "default":
        words.append(f"--conventions {record.preset}")
    words += [f"--convention {rule}={value}" for rule, value in record.convention_options.items()]
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) > _WIDTH:
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    return " \\\n".join(lines)
