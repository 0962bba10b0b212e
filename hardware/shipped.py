"""TOML files by name or path: those that come with the package, and one's own.

The one idea: machines, technologies, search spaces and suites are found and parsed in one way, and
what is wrong before anything in a file is read (no such file, a folder, no UTF-8, no TOML) has one
wording. Who reads a file brings its own error class.
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from jaxcomet.hardware.errors import Problem, nearest, one_of

Refuse = Callable[[str, list[Problem]], Exception]
"""From the label of a file and what is wrong with it to the error that is raised."""


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """A file as parsed, unchecked.

    Attributes:
      label: its name for messages.
      tables: its tables.
      folder: where it lies; None of one that comes with the package.
    """

    label: str
    tables: dict[str, Any]
    folder: Path | None


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """A folder of files that comes with a package.

    Attributes:
      package: e.g. ``jaxcomet.hardware``.
      folder: e.g. ``specs``.
      what: what a file describes, for messages, e.g. ``machine``.
      page: page that explains the format.
      refuse: makes the error.
    """

    package: str
    folder: str
    what: str
    page: str
    refuse: Refuse

    def names(self) -> tuple[str, ...]:
        """Names of its files, sorted."""
        files = (entry.name for entry in self._files().iterdir())
        return tuple(sorted(n.removesuffix(".toml") for n in files if n.endswith(".toml")))

    def read(self, name_or_path: str | PathLike[str]) -> Parsed:
        """The tables of one of its files, or of a file by its path.

        Raises:
          Exception: of `refuse`, where there is no such file or it is no TOML.
        """
        given = fspath(name_or_path)
        if isinstance(name_or_path, str) and given in self.names():
            label = "/".join([*self.package.split(".")[1:], self.folder, f"{given}.toml"])
            content = (self._files() / f"{given}.toml").read_bytes()
            return Parsed(label=label, tables=self._tables(label, content), folder=None)
        content = self._content(given, isinstance(name_or_path, str))
        tables = self._tables(given, content)
        return Parsed(label=given, tables=tables, folder=Path(given).parent)

    def _files(self) -> Traversable:
        return resources.files(self.package) / self.folder

    def _content(self, given: str, may_be_name: bool) -> bytes:
        path, kind = Path(given), f"a {self.what} file in TOML"
        try:
            return path.read_bytes()
        except IsADirectoryError:
            problem = Problem("file", "a folder", kind, "name the file in it")
        except FileNotFoundError:
            if path.suffix == ".toml" or len(path.parts) > 1 or not may_be_name:
                problem = Problem("file", "no such file", kind, "check the path")
            else:
                known = self.names()
                problem = Problem(
                    f"{self.what} name",
                    f"the unknown name {given}",
                    f"{one_of(known)}, or the path of a .toml file",
                    nearest(given, known, f"choose one of these or write a file ({self.page})"),
                )
        except OSError as error:
            got = (error.strerror or type(error).__name__).lower()
            problem = Problem("file", got, "a file that can be read", "check its permissions")
        raise self.refuse(given, [problem])

    def _tables(self, label: str, content: bytes) -> dict[str, Any]:
        try:
            return tomllib.loads(content.decode("utf-8"))
        except UnicodeDecodeError as error:
            got = f"byte {error.start} that is not UTF-8"
            problem = Problem("file", got, "UTF-8 text", "save so")
        except tomllib.TOMLDecodeError as error:
            what, _, where = str(error).rpartition(" (at ")
            line = re.match(r"line \d+", where)
            twice = re.search(r"overwrite|twice|already|mutate", what, re.IGNORECASE)
            problem = Problem(
                line[0] if line else "end of the file",
                f"a second definition of a key ({what})" if twice else f"no valid TOML ({what})",
                "every key once" if twice else "TOML 1.0",
                "remove one of the two" if twice else "correct the line",
            )
        raise self.refuse(label, [problem])
