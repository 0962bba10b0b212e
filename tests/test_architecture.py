"""Imports point one way: hardware <- model <- optimize <- command line; kernels stand alone.

Besides: modules stay short, and the test run checks annotations.
"""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from beartype.roar import BeartypeCallHintViolation

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("hardware", "kernels", "optimize")
MAX_LINES = 600


def _modules() -> list[Path]:
    """All modules of the four folders, each under its own name and not through a link."""
    found = []
    for top in ("jaxcomet", *LINKED):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            if not (parts[0] == "jaxcomet" and parts[1] in LINKED):
                found.append(path.relative_to(ROOT))
    return found


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _folder(path: Path) -> str:
    """hardware, kernels, optimize, cli, or model for the rest of jaxcomet/."""
    if path.parts[0] != "jaxcomet":
        return path.parts[0]
    return "cli" if path.parts[1] == "cli" else "model"


def _folder_of_import(name: str) -> str | None:
    """The folder that an import reaches, or None where it is not one of ours."""
    top, _, rest = name.partition(".")
    if top != "jaxcomet":
        return None
    first = rest.split(".")[0]
    if first in (*LINKED, "cli"):
        return first
    return "compat" if first in ("_compat", "_version") else "model"


ALLOWED = {
    "hardware": {"hardware", "compat"},
    "kernels": {"kernels", "compat"},
    "model": {"hardware", "model", "compat"},
    "optimize": {"hardware", "model", "kernels", "optimize", "compat"},
    "cli": {"hardware", "model", "kernels", "optimize", "cli", "compat"},
}


@pytest.mark.parametrize("path", _modules(), ids=str)
def test_imports_follow_the_arrows(path: Path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    reached = {name: _folder_of_import(name) for name in _imports(tree)}
    ours = {name: folder for name, folder in reached.items() if folder is not None}
    assert {n for n, folder in ours.items() if folder not in ALLOWED[_folder(path)]} == set()


@pytest.mark.parametrize("path", _modules(), ids=str)
def test_imports_are_absolute(path: Path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level] == []


@pytest.mark.parametrize("path", _modules(), ids=str)
def test_modules_stay_short_and_are_named_by_an_idea(path: Path):
    assert len((ROOT / path).read_text(encoding="utf-8").splitlines()) <= MAX_LINES
    assert path.stem not in ("utils", "util", "helpers", "misc", "common")


def test_all_four_folders_are_seen():
    assert {"hardware", "kernels", "optimize", "model"} <= {_folder(path) for path in _modules()}


@pytest.mark.skipif(
    os.environ.get("JAXCOMET_CHECK_ANNOTATIONS", "1") == "0",
    reason="JAXCOMET_CHECK_ANNOTATIONS=0 runs the tests as in production",
)
def test_annotations_are_checked_in_the_test_run():
    from jaxcomet.hardware import load

    with pytest.raises(BeartypeCallHintViolation):
        load(3)  # pyright: ignore[reportArgumentType]
