"""What README and docs show is what comes out: Python and commands run, figures in text hold."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jaxcomet.cli.main import app
from jaxcomet.cost.conventions import RULES, allowed

ROOT = Path(__file__).resolve().parents[1]
NAMES = (
    "equations",
    "strategies",
    "machines",
    "collectives",
    "gemm",
    "gemm-softmax",
    "gemm-layernorm",
    "attention",
    "legality",
    "kernels",
    "search",
)
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in NAMES)]
ALL = [*PAGES, *(p for p in sorted((ROOT / "docs").glob("*.md")) if p not in PAGES)]


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.S | re.M)


def _commands() -> list[str]:
    lines = "\n".join(_blocks(PAGES[0], "bash")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("jaxcomet ")]


def _words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)  # pages name files of the repository
    blocks = _blocks(page, "python")
    assert blocks, f"{page.name} shows no Python"
    scope: dict = {}  # the blocks of a page continue each other
    for block in blocks:
        exec(compile(block, f"{page.name}", "exec"), scope)


@pytest.mark.parametrize("page", ALL, ids=lambda p: p.name)
def test_links_and_pictures_of_a_page_exist(page: Path):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)#]+?)\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target
    for name in re.findall(r"docs/[\w-]+\.md", text):
        assert (ROOT / name).exists(), name


def test_the_worked_example_comes_out_as_written():
    page = PAGES[1]
    scope: dict = {}
    exec(compile(_blocks(page, "python")[0], page.name, "exec"), scope)
    cost = scope["evaluate"](scope["op"], scope["mapping"], scope["edge"])
    text = _words(page.read_text())
    assert f"= {cost.latency_cycles:,.0f} cycles.**" in text
    assert f"**In all {cost.energy_pj:,.3f} pJ.**" in text


def test_what_a_strategy_of_ones_own_prints_is_as_written(capsys: pytest.CaptureFixture):
    page = ROOT / "docs" / "strategies.md"
    scope: dict = {}
    for block in _blocks(page, "python"):
        exec(compile(block, page.name, "exec"), scope)
    printed = capsys.readouterr().out
    text = re.sub(r"^    ", "", page.read_text(), flags=re.M)
    first, last = printed.split("\n")[:6], printed.rstrip().split("\n")[-2:]
    assert "\n".join(first) in text
    assert "\n".join(last) in text


def test_the_trees_of_gemm_softmax_are_as_drawn():
    page = ROOT / "docs" / "gemm-softmax.md"
    scope: dict = {}
    for block in _blocks(page, "python"):
        exec(compile(block, page.name, "exec"), scope)
    text = re.sub(r"^    ", "", page.read_text(), flags=re.M)
    assert scope["tree"] in text
    assert scope["other_tree"] in text


def test_every_convention_stands_in_its_page_with_all_values():
    text = _words((ROOT / "docs" / "conventions.md").read_text())
    for option in RULES:
        values = ", ".join(f"`{v}`" for v in allowed(option))
        assert f"`{option}`: {values}" in text, option


def test_every_equation_number_that_a_page_or_docstring_names_exists():
    text = (ROOT / "docs" / "equations.md").read_text()
    sections = set(re.findall(r"^###? ([\d.]+) ", text, flags=re.M))
    sources = [p for p in ROOT.glob("*/**/*.py") if "jaxcomet" in p.parts or "optimize" in p.parts]
    for page in [*ALL, *sources]:
        for named in re.findall(r"docs/equations\.md`?, (\d(?:\.\d)?)", page.read_text()):
            assert named in sections, f"{page.name}: {named}"


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["gemm", "gemm-softmax", "gemm-layernorm", "attention"])
def test_the_table_beside_a_figure_is_what_the_search_finds(operation: str):
    script = ROOT / "docs" / "figures" / "operations.py"
    spec = importlib.util.spec_from_file_location("operations_figures", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.best(module.PICTURES[operation])
    page = (ROOT / "docs" / f"{operation}.md").read_text()
    baseline = next(iter(found.values())).cost.latency_cycles
    for label, result in found.items():
        cost = result.cost
        speedup = f"{baseline / cost.latency_cycles:.2f}"
        row = f"| {cost.latency_cycles:,.0f} | {speedup} |"
        if operation != "gemm":
            row += f" {cost.energy_pj / 1e6:,.1f} | {cost.root_traffic_bytes:,.0f} |"
        assert row in page, label


@pytest.mark.slow
@pytest.mark.parametrize("command", _commands(), ids=lambda c: c.split(" --")[0])
def test_command_of_the_readme_runs(command: str, tmp_path, monkeypatch):
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compare", "map"])
def test_a_result_in_the_readme_comes_out_as_written(name: str, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = _blocks(PAGES[0], "text")[["compare", "map"].index(name)]
    command = next(c for c in _commands() if c.startswith(f"jaxcomet {name} "))
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    out = "\n".join(line.rstrip() for line in result.stdout.splitlines())
    assert shown.strip() in out
