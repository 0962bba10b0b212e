"""Files that commands read and write: a file is written whole or not at all.

The one idea: what is written goes to a temporary file in the same folder and takes its final name
in one step, so that a reader never sees half of it and a failure leaves the old file as it was.
"""

import contextlib
import csv
import io
import os
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jaxcomet.cli.errors import InputError

STANDARD = "-"
"""The name that stands for standard input or output."""


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def read_text(path: str) -> str:
    """The text of a file, or of standard input for ``-``.

    Raises:
      InputError: it cannot be read, or is no UTF-8 text.
    """
    try:
        data = sys.stdin.buffer.read() if path == STANDARD else Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({_reason(error)}); check the path") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: got byte {error.start} that is not UTF-8; expected UTF-8 text; save it so"
        ) from None


def check_writable(path: str) -> None:
    """Refuses a file that cannot be written, before long work is begun.

    Raises:
      InputError: a folder, a folder that does not exist, or no permission.
    """
    if path == STANDARD:
        return
    target = Path(os.path.realpath(path))
    advice = "name a file in a folder that exists and that you may write to"
    if target.is_dir():
        raise InputError(f"{path}: cannot be written (is a folder); {advice}")
    if not target.parent.is_dir():
        raise InputError(f"{path}: cannot be written (no folder {target.parent}); {advice}")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise InputError(f"{path}: cannot be written (permission denied); {advice}")


def write_whole(path: str, content: str | bytes) -> None:
    """Writes a file, or standard output for ``-``, whole or not at all.

    Raises:
      InputError: it cannot be written; what stood there before is unchanged.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    if path == STANDARD:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    check_writable(path)
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)  # a device or a pipe has no half-written state
            return
        _replace(target, data)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({_reason(error)}); choose another place"
        ) from None


def _replace(target: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, _mode(target))
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _mode(target: Path) -> int:
    """Permissions of the file that is replaced, or those of a new file."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@dataclass(frozen=True, kw_only=True)
class CsvTable:
    """A CSV file as text cells.

    Attributes:
      label: its name for messages.
      columns: names of the columns, all different.
      rows: cells, as many in each row as there are columns.
      lines: line of the file in which each row ends.
    """

    label: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]

    def column(self, name: str) -> list[str]:
        """Cells of one column."""
        index = self.columns.index(name)
        return [row[index] for row in self.rows]

    def place(self, row: int, column: str) -> str:
        """Where a cell stands, for messages; `row` counts from 0."""
        return f"{self.label}: row {row + 1} (line {self.lines[row]}), column {column}"


def read_csv(path: str) -> CsvTable:
    """The cells of a CSV file whose first line names the columns.

    Raises:
      InputError: it cannot be read, is empty, names a column twice or not at all, or has a row with
        too few or too many cells.
    """
    label = "standard input" if path == STANDARD else path
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    rows: list[tuple[str, ...]] = []
    lines: list[int] = []
    try:
        for row in reader:
            if row:
                rows.append(tuple(row))
                lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(
            f"{label}: line {reader.line_num}: no valid CSV ({error}); correct the line"
        ) from None
    if not rows:
        raise InputError(f"{label}: got an empty table; expected a line of column names and rows")
    columns = tuple(name.strip() for name in rows[0])
    _check_columns(label, columns)
    if len(rows) == 1:
        raise InputError(f"{label}: got no rows below the column names; expected at least one")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(columns):
            raise InputError(
                f"{label}: row {number} (line {lines[number]}): got {len(row)} cells; "
                f"expected {len(columns)}, one per column"
            )
    return CsvTable(label=label, columns=columns, rows=tuple(rows[1:]), lines=tuple(lines[1:]))


def _check_columns(label: str, columns: tuple[str, ...]) -> None:
    for position, name in enumerate(columns, start=1):
        if not name:
            raise InputError(
                f"{label}: column {position}: got no name; expected one in the first line"
            )
        if columns.index(name) != position - 1:
            raise InputError(
                f"{label}: got column {name} twice (columns {columns.index(name) + 1} and "
                f"{position}); expected each name once; remove or rename one"
            )


def csv_text(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table as CSV text."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
