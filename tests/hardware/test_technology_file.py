"""Files of technologies: each number with unit and source, and one line for each thing wrong."""

import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxcomet.hardware import MachineFileError, load_technology, technology_names

CONTENT = (resources.files("jaxcomet.hardware") / "technologies" / "45nm.toml").read_text("utf-8")
T45 = load_technology("45nm")


def _numbers(table: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and "value" not in value:
            yield from _numbers(value, (*path, key))
        else:
            yield ".".join((*path, key)), value


def _lines(tmp_path: Path, text: str | bytes) -> list[str]:
    path = tmp_path / "technology.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(MachineFileError) as caught:
        load_technology(path)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    return [line.removeprefix(f"{path}: ") for line in lines]


def _changed(*changes: tuple[str, str]) -> str:
    text = CONTENT
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def test_every_number_has_value_unit_source_and_kind():
    found = dict(_numbers(tomllib.loads(CONTENT)))
    assert [key for key, entry in found.items() if not isinstance(entry, dict)] == [
        "name",
        "description",
    ]
    entries = {key: entry for key, entry in found.items() if isinstance(entry, dict)}
    assert len(entries) == 7 + 3 * 5 + 2 + 2 + 1 + 1
    assert len(entries) == len(jax.tree.leaves(T45))  # and each of them is read
    for key, entry in entries.items():
        assert set(entry) == {"value", "unit", "source", "kind"}, key
        assert len(entry["source"].split()) > 1 or "sram_fit.py" in entry["source"], key


def test_a_number_without_source_is_refused_wherever_it_stands(tmp_path: Path):
    for line in CONTENT.splitlines():
        if "source = " in line:
            before, _, rest = line.partition(", source = ")
            bare = before + ", kind" + rest.partition(", kind")[2]
            (found,) = _lines(tmp_path, CONTENT.replace(line, bare, 1))
            key = line.partition(" = ")[0]
            assert found.partition(": ")[0].endswith(key)
            assert ": got a number without source; expected e.g. {value = " in found
            assert found.endswith("; add the source")


def test_names_of_technologies():
    assert technology_names() == ("45nm",)
    assert load_technology() == T45
    assert T45.name == "45nm"
    assert all(isinstance(leaf, float) for leaf in jax.tree.leaves(T45))


def test_a_file_in_other_units_is_the_same(tmp_path: Path):
    path = tmp_path / "technology.toml"
    changes = [
        ('value = 2.45e5, unit = "um2"', 'value = 0.245, unit = "mm2"'),
        ('value = 282, unit = "um2"', 'value = 2.82e-4, unit = "mm2"'),
        ('value = 0.25, unit = "mm2/(byte/cycle)"', 'value = 2.5e5, unit = "um2/(byte/cycle)"'),
        ('value = 32, unit = "MiB"', 'value = 32768, unit = "KiB"'),
        # 64 byte an access, the reference width; 8 bit a byte
        ('value = 1.2189, unit = "pJ/byte"', 'value = 78.0096, unit = "pJ/access"'),
        ('value = 2.1152, unit = "pJ/byte"', 'value = 0.2644, unit = "pJ/bit"'),
    ]
    path.write_text(_changed(*changes), encoding="utf-8")
    same = load_technology(path)
    assert jax.tree.leaves(same) == pytest.approx(jax.tree.leaves(T45), rel=1e-15)
    assert jax.tree.structure(same) == jax.tree.structure(T45)


AREA = '{value = 1, unit = "um2", source = "document, page", kind = "published"}'
MULTIPLIER = next(line for line in CONTENT.splitlines() if line.startswith("multiplier"))
FLIP_FLOP = next(line for line in CONTENT.splitlines() if line.startswith("flip_flop"))


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            [('value = 282, unit = "um2"', 'value = 282, unit = "um"')],
            [
                'matrix.multiplier.unit: got "um"; expected an area: one of um2, mm2; '
                "write it in um2"
            ],
        ),
        (
            [("value = 282", "value = -282")],
            [
                "matrix.multiplier.value: got -282; expected a finite number above 0; "
                "correct the value"
            ],
        ),
        (
            [("value = 282", 'value = "282"')],
            [
                'matrix.multiplier.value: got "282"; expected a finite number above 0; '
                "write a plain number"
            ],
        ),
        (
            [("value = 0.9888", "value = nan")],
            ["sram.area.capacity_exponent.value: got nan; expected a finite number; give a number"],
        ),
        (
            [(MULTIPLIER, "multiplier = 282")],
            [f"matrix.multiplier: got 282; expected e.g. {AREA}; write it so"],
        ),
        (
            [(MULTIPLIER, "")],
            [f"matrix.multiplier: got nothing; expected e.g. {AREA}; add the key"],
        ),
        (
            [(MULTIPLIER, MULTIPLIER.replace("multiplier", "multplier", 1))],
            [
                f"matrix.multiplier: got nothing; expected e.g. {AREA}; add the key",
                "matrix.multplier: got unknown key multplier; expected one of multiplier, adder; "
                "did you mean multiplier?",
            ],
        ),
        (
            [(FLIP_FLOP, FLIP_FLOP.replace('"published"', '"known"'))],
            [
                'router.flip_flop.kind: got "known"; expected one of published, measured, '
                "assumed; say how the number is known"
            ],
        ),
        (
            [("[router]\n" + FLIP_FLOP, ""), ("[dram_interface]", "[dram]")],
            [
                "dram: got unknown key dram; expected one of name, description, sram, matrix, "
                "vector, router, dram_interface; did you mean sram?",
                "dram_interface: got nothing; expected a table with area_per_bandwidth; "
                "add the key",
                "router: got nothing; expected a table with flip_flop; add the key",
            ],
        ),
        (
            [('name = "45nm"', "name = 45")],
            ["name: got 45; expected a text in quotes; write it so"],
        ),
        (
            [
                (
                    'least_capacity = { value = 4, unit = "KiB"',
                    'least_capacity = { value = 4, unit = "GiB"',
                ),
                ("least_width = { value = 16", "least_width = { value = 1024"),
            ],
            [
                "sram.least_capacity: got 4 GiB, above most_capacity; expected at most 32 MiB; "
                "swap the two",
                "sram.least_width: got 1024 B, above most_width; expected at most 512 B; "
                "swap the two",
            ],
        ),
        (
            [("value = 282", "value = 0"), ("value = 4184", "value = inf")],
            [
                "matrix.multiplier.value: got 0; expected a finite number above 0; "
                "correct the value",
                "vector.adder.value: got inf; expected a finite number above 0; "
                "give a number, or drop an optional key",
            ],
        ),
    ],
)
def test_one_line_for_each_thing_wrong_in_a_file(
    tmp_path: Path, changes: list[tuple[str, str]], lines: list[str]
):
    assert _lines(tmp_path, _changed(*changes)) == lines


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"name = \xff", "file: got byte 7 that is not UTF-8; expected UTF-8 text; save so"),
        (b"name = ", "end of the file: got no valid TOML (Invalid value); "),
    ],
)
def test_a_file_that_is_no_toml(tmp_path: Path, content: bytes, line: str):
    (found,) = _lines(tmp_path, content)
    assert found.startswith(line)


def test_an_empty_file_lacks_every_table(tmp_path: Path):
    lines = _lines(tmp_path, "")
    assert [line.partition(":")[0] for line in lines] == sorted(
        ["name", "description", "sram", "matrix", "vector", "router", "dram_interface"]
    )
    assert all(": got nothing; expected a" in line for line in lines)


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path):
    with pytest.raises(MachineFileError) as caught:
        load_technology("45")
    assert str(caught.value) == (
        "45: technology name: got the unknown name 45; expected one of 45nm, or the path of a "
        ".toml file; did you mean 45nm?"
    )
    with pytest.raises(MachineFileError, match="got a folder; expected a technology file in TOML"):
        load_technology(tmp_path)
