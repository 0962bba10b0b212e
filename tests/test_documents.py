"""What README and docs show is what comes out: Python and commands run, figures in text hold."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jaxcomet.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("equations", "strategies", "machines", "collectives")
    ),
]


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.S | re.M)


def _commands() -> list[str]:
    lines = "\n".join(_blocks(PAGES[0], "bash")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("jaxcomet ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_of_a_page_runs(page: Path):
    blocks = _blocks(page, "python")
    assert blocks, f"{page.name} shows no Python"
    for block in blocks:
        exec(compile(block, f"{page.name}", "exec"), {})


def test_the_worked_example_comes_out_as_written():
    page = PAGES[1]
    scope: dict = {}
    exec(compile(_blocks(page, "python")[0], page.name, "exec"), scope)
    cost = scope["evaluate"](scope["op"], scope["mapping"], scope["edge"])
    text = " ".join(page.read_text().split())
    assert f"= {cost.latency_cycles:,.0f} cycles.**" in text
    assert f"**In all {cost.energy_pj:,.3f} pJ.**" in text


@pytest.mark.slow
@pytest.mark.parametrize("command", _commands(), ids=lambda c: c.split(" --")[0])
def test_command_of_the_readme_runs(command: str, tmp_path, monkeypatch):
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_the_first_result_comes_out_as_written(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = _blocks(PAGES[0], "text")[0]
    result = CliRunner().invoke(app, shlex.split(_commands()[0])[1:])
    out = "\n".join(line.rstrip() for line in result.stdout.splitlines())
    assert shown.strip() in out
