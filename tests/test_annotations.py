"""The test run checks annotations of functions, methods, closures and fields, and dtypes."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation

from tests import annotations

ROOT = Path(__file__).resolve().parents[1]
NAMED = re.compile(r'\b[A-Z]\w*\[[^\[\]"]*, "([^"]*)"\]')
"""A type of jaxtyping with its axes."""

SOURCE = """
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from fractions import Fraction

@dataclass(frozen=True)
class Box:
    size: int

    @cached_property
    def half(self) -> int:
        return self.size / 2

def adder(amount: int):
    def add(x: int) -> int:
        return x + amount
    return add

def total(x: Float[np.ndarray, "..."]) -> float:
    return float(x.sum())

def upper(x: "Fraction") -> int:
    return x.numerator
"""


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "made_for_annotations.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    annotations.check("made_for_annotations")
    yield importlib.import_module("made_for_annotations")
    sys.meta_path[:] = before
    del sys.modules["made_for_annotations"]


def test_what_breaks_an_annotation_is_refused(checked: ModuleType):
    wrong = (
        lambda: checked.Box("1"),
        lambda: checked.Box(4).half,
        lambda: checked.total(np.arange(3)),
        lambda: checked.upper(1.5),
        lambda: checked.adder("1"),
    )
    for call in wrong:
        with pytest.raises(BeartypeCallHintViolation):
            call()
    assert checked.Box(4).size == 4
    assert checked.total(np.arange(3.0)) == 3.0


def test_every_closure_is_checked_and_is_its_own(checked: ModuleType):
    adders = [checked.adder(amount) for amount in (1, 2, 3)]
    assert [add(10) for add in adders] == [11, 12, 13]
    for add in adders:
        assert add.__name__ == "add"
        with pytest.raises(BeartypeCallHintViolation):
            add(1.5)


def test_no_annotation_names_an_axis():
    """Those of several arguments would have to be compared, which this hook does not."""
    found = [
        axes
        for top in ("jaxcomet", "hardware", "kernels", "optimize")
        for path in (ROOT / top).rglob("*.py")
        for axes in NAMED.findall(path.read_text(encoding="utf-8"))
    ]
    assert found
    assert set(found) == {"..."}
