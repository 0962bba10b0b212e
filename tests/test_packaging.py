"""The packages that the build lists are the folders that exist, and their data come along."""

import subprocess
import sys
import tomllib
from importlib import import_module, resources
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("hardware", "kernels", "optimize")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]


def _packages_on_disk() -> set[str]:
    found = set()
    for top in ("jaxcomet", *LINKED):
        for init in (ROOT / top).rglob("__init__.py"):
            name = ".".join(init.parent.relative_to(ROOT).parts)
            if not name.startswith(tuple(f"jaxcomet.{link}" for link in LINKED)):
                found.add(name if top == "jaxcomet" else f"jaxcomet.{name}")
    return found


def test_listed_packages_are_the_folders_with_an_init():
    assert set(SETUPTOOLS["packages"]) == _packages_on_disk()


@pytest.mark.parametrize("package", sorted(SETUPTOOLS["packages"]))
def test_every_listed_package_imports(package: str):
    import_module(package)


@pytest.mark.parametrize("name", LINKED)
def test_the_links_lead_to_the_folders_at_the_top(name: str):
    link = ROOT / "jaxcomet" / name
    assert link.is_symlink()
    assert link.readlink().as_posix() == f"../{name}"
    assert SETUPTOOLS["package-dir"][f"jaxcomet.{name}"] == name


@pytest.mark.parametrize("name", LINKED)
def test_the_bare_name_is_refused_with_the_right_one(name: str):
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"ImportError: import jaxcomet.{name}, not {name}" in done.stderr


def _data_files() -> list[tuple[str, str]]:
    """Package and path in it of each file that is no Python module."""
    found = []
    for top, package in (("jaxcomet", "jaxcomet"), *((x, f"jaxcomet.{x}") for x in LINKED)):
        for path in sorted((ROOT / top).rglob("*")):
            inside = path.relative_to(ROOT / top)
            through_link = top == "jaxcomet" and inside.parts[0] in LINKED
            if path.is_file() and not through_link and path.suffix not in (".py", ".pyc"):
                found.append((package, inside.as_posix()))
    return found


def test_there_are_data_files():
    assert ("jaxcomet.hardware", "specs/edge.toml") in _data_files()
    assert ("jaxcomet", "py.typed") in _data_files()


@pytest.mark.parametrize(("package", "path"), _data_files())
def test_data_files_are_listed_and_present_where_the_package_is(package: str, path: str):
    patterns = SETUPTOOLS["package-data"].get(package, [])
    assert any(Path(path).match(pattern) for pattern in patterns)
    assert (resources.files(package) / path).is_file()


def test_the_version_is_the_one_of_the_installed_package():
    version = import_module("jaxcomet._version").__version__
    assert SETUPTOOLS["dynamic"]["version"] == {"attr": "jaxcomet._version.__version__"}
    assert version == "0.1.0"
