import csv
import io
import json
from pathlib import Path

import pytest

from jaxcomet.cli.pricing import ADDED

FIXTURE = Path(__file__).resolve().parents[1] / "data" / "comet_program_fixture.csv"
COMMAND = ("evaluate", "gemm-softmax", "--strategy", "fused-gemm-distsm", "--reduce", "tile")
PROGRAM = (*COMMAND, "--conventions", "comet-program")
HEAD = "M,N,K,N_dram_sx,N_dram_sy,N_gb_sx,N_gb_sy,N_comp,K_comp"
ROW = "1,1024,128,2,2,2,2,64,128"


def _read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def table(tmp_path):
    """Writes a table and returns its name and that of the result."""

    def write(*lines: str) -> tuple[Path, Path]:
        file = tmp_path / "in.csv"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file, tmp_path / "out.csv"

    return write


@pytest.mark.slow
def test_the_runs_of_the_program_cost_what_it_printed(cli, tmp_path):
    out = tmp_path / "out.csv"
    result = cli(*PROGRAM, "--table", FIXTURE, "--out", out)
    assert result.exit_code == 0
    assert str(out) in result.stdout
    given, priced = _read(FIXTURE.read_text()), _read(out.read_text())
    assert len(priced) == len(given)
    assert list(priced[0]) == [*given[0], *ADDED]
    for before, after in zip(given, priced, strict=True):
        assert {name: after[name] for name in before} == before
        if before["note"] == "OOM":
            assert after["feasible"] == "false"
            assert "needs" in after["reason"]
        else:
            assert after["feasible"] == "true"
            assert after["reason"] == ""
            assert after["latency_cycles"] == before["root_node_cycles"]
            assert float(after["energy_pj"]) == pytest.approx(float(before["energy_pJ"]), rel=1e-6)


def test_a_table_of_one_machine_is_priced_and_other_columns_are_kept(cli, table):
    file, out = table(f"{HEAD},who wrote it", f'{ROW},"me, ""and"" you"', f"{ROW},", "")
    result = cli(*PROGRAM, "--machine", "edge", "--table", file, "--out", out, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "out": str(out),
        "rows": 2,
        "feasible": 2,
        "machines": {"edge": 2},
        "strategy": "fused-gemm-distsm[reduce=tile]",
        "conventions": "comet-program",
    }
    rows = _read(out.read_text())
    assert [row["who wrote it"] for row in rows] == ['me, "and" you', ""]
    # column 1 of the worked rows of the closed form
    assert [row["latency_cycles"] for row in rows] == ["9270", "9270"]


def test_set_changes_the_table_and_stdout_can_take_it(cli, table):
    file, _ = table(HEAD, ROW)
    words = (*PROGRAM, "--machine", "edge", "--table", file, "--out", "-")
    plain = cli(*words)
    faster = cli(*words, "--set", "memory.dram.child_bandwidth=50")
    assert "1 mappings" in plain.stderr
    cycles = [int(_read(r.stdout)[0]["latency_cycles"]) for r in (plain, faster)]
    assert cycles[1] < cycles[0]


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        ((), ("empty table",)),
        ((HEAD,), ("no rows",)),
        (("M,N", "1,2"), ("no column K",)),
        ((f"{HEAD},M", f"{ROW},1"), ("column M twice", "columns 1 and 10")),
        ((f"{HEAD},", f"{ROW},1"), ("column 10", "no name")),
        ((HEAD, ROW, f"{ROW},3"), ("row 2 (line 3)", "10 cells", "expected 9")),
        ((HEAD, ROW, "0,1024,128,2,2,2,2,64,128"), ("row 2 (line 3), column M: got '0'",)),
        ((HEAD, "-1,1024,128,2,2,2,2,64,128"), ("row 1 (line 2), column M: got '-1'",)),
        ((HEAD, "1,1024,128,2,2,2,2,nan,128"), ("column N_comp: got 'nan'", "whole number")),
        ((HEAD, "1,1024,128,2,2,2,2,6.5,128"), ("column N_comp: got '6.5'", "whole number")),
        ((HEAD, "1,1024,128,2,2,2,2,,128"), ("column N_comp: got ''", "whole number")),
        ((HEAD, "1,1024,128,2,2,2,2,many,128"), ("column N_comp: got 'many'",)),
        ((HEAD, ROW, ROW, "1,1024,128,2,2,2,2,32,128"), ("row 3 (line 4)", "at least 1024")),
        ((HEAD, "1,1024,128,2,2,2,2,64,999"), ("row 1 (line 2)",)),
        ((f"{HEAD},M_dram_x", f"{ROW},1"), ("column M_dram_x", "M_dram_t")),
        ((f"{HEAD},softmax.M_comp", f"{ROW},1"), ("column softmax.M_comp", "M_comp")),
        ((f"{HEAD},platform", f"{ROW},edge", f"{ROW},cloud"), ("row 2", "'cloud'", "leave out")),
        ((f"{HEAD},latency_cycles", f"{ROW},1"), ("latency_cycles", "rename or remove")),
        ((f"{HEAD},platform,machine", f"{ROW},edge,edge"), ("keep one",)),
        ((HEAD, f'"{ROW}'), ("no valid CSV",)),
    ],
    ids=lambda value: value[0] if value else "nothing",
)
def test_a_bad_table_is_refused_with_its_place_and_nothing_is_written(
    refused, table, lines: tuple[str, ...], parts: tuple[str, ...]
):
    file, out = table(*lines)
    message = refused(*PROGRAM, "--machine", "edge", "--table", file, "--out", out)
    assert all(part in message for part in parts), message
    assert not out.exists()
    assert [path.name for path in out.parent.iterdir()] == [file.name]


def test_a_machine_that_a_row_names_must_be_known(refused, table):
    file, out = table(f"{HEAD},machine", f"{ROW},egde")
    assert "did you mean edge" in refused(*PROGRAM, "--table", file, "--out", out)
    file, out = table(f"{HEAD},machine", f"{ROW},")
    assert "name the machine" in refused(*PROGRAM, "--table", file, "--out", out)


def test_a_table_without_any_machine_is_refused(refused, table):
    file, out = table(HEAD, ROW)
    assert "--machine: missing" in refused(*PROGRAM, "--table", file, "--out", out)


def test_a_result_that_was_there_survives_a_bad_table(refused, table):
    file, out = table(HEAD, "0,1,1,1,1,1,1,1,1")
    out.write_text("kept")
    refused(*PROGRAM, "--machine", "edge", "--table", file, "--out", out)
    assert out.read_text() == "kept"


def test_a_place_that_cannot_be_written_is_refused_before_pricing(refused, table, tmp_path):
    file, _ = table(HEAD, ROW)
    words = (*PROGRAM, "--machine", "edge", "--table", file, "--out")
    assert "no folder" in refused(*words, tmp_path / "nowhere" / "out.csv")
    assert "is a folder" in refused(*words, tmp_path)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--m", 3, "--out", "x.csv"), "--m"),
        (("--factor", "M_comp=1", "--out", "x.csv"), "--factor"),
        (("--explain", "--out", "x.csv"), "--explain"),
        ((), "--out: missing"),
        (("--out", "-", "--json"), "--out -"),
        (("--out", "x.csv", "--reduce", "all"), "rows or tile"),
        (("--out", "x.csv", "--conventions", "none"), "comet-program"),
    ],
)
def test_options_that_do_not_go_with_a_table_are_refused(
    refused, table, words: tuple[object, ...], part: str, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    file, _ = table(HEAD, ROW)
    assert part in refused(*PROGRAM, "--machine", "edge", "--table", file, *words)
    assert not (tmp_path / "x.csv").exists()


def test_batches_of_a_long_table_are_put_together(cli, table, monkeypatch):
    rows = [f"1,1024,{k},2,2,2,2,64,{k}" for k in (128, 64, 32, 16, 8)]
    file, _ = table(HEAD, *rows)
    words = (*PROGRAM, "--machine", "edge", "--table", file, "--out", "-")
    whole = cli(*words)
    monkeypatch.setattr("jaxcomet.cli.pricing._BATCH", 2)
    parts = cli(*words)
    assert whole.exit_code == parts.exit_code == 0
    assert len(_read(whole.stdout)) == len(rows)
    assert whole.stdout == parts.stdout
