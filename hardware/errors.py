"""What is wrong with a machine file, one line per problem.

The one idea: a reader of the message should not need the source. Each line names the file, the
dotted key, what stood there, what is allowed and what to do; all problems of a file come together.
"""

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_LONGEST = 80


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong in a machine file.

    Attributes:
      key: dotted key, e.g. ``memory.dram.child_bandwidth``, or a line of the file.
      got: what stands there.
      expected: what is allowed there.
      advice: what to do.
    """

    key: str
    got: str
    expected: str
    advice: str

    def line(self, file: str) -> str:
        """The problem as one line of text."""
        return f"{file}: {self.key}: got {self.got}; expected {self.expected}; {self.advice}"


class MachineFileError(ValueError):
    """A machine file, a machine name or an override that cannot be used.

    Attributes:
      file: the file or name as it was given.
      problems: everything found, sorted by key.
    """

    def __init__(self, file: str, problems: Iterable[Problem]):
        self.file = file
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(problem.line(file) for problem in self.problems))

    def __reduce__(self) -> tuple[type["MachineFileError"], tuple[str, tuple[Problem, ...]]]:
        """Pickled by its parts, since the message is made from them."""
        return type(self), (self.file, self.problems)


def show(value: object) -> str:
    """A TOML value as it would stand in the file, shortened to one line."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, dict):
        text = "a table with the keys " + ", ".join(value) if value else "an empty table"
    elif isinstance(value, list):
        text = "[" + ", ".join(show(item) for item in value) + "]"
    else:
        text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def one_of(names: Iterable[str]) -> str:
    """The known names as text: "one of a, b, c"."""
    listed = ", ".join(names)
    return f"one of {listed}" if listed else "nothing here"


def nearest(name: str, known: Sequence[str], otherwise: str) -> str:
    """Advice that names the closest of the known names, or `otherwise` where none is close."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else otherwise
