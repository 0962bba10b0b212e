"""Workloads: the graph, its sizes, and what is refused."""

import jax
import numpy as np
import pytest

from jaxcomet import WorkloadError, gemm_softmax
from jaxcomet.workload import Operation, Tensor, build, check_size


def _operation(name: str, inputs: tuple[str, ...], output: str, kind: str = "map") -> Operation:
    return Operation(name=name, kind=kind, function="add", inputs=inputs, output=output, bits=8)  # pyright: ignore[reportArgumentType]


TENSORS = tuple(Tensor(name=n, dims=("M", "N"), bits=8) for n in ("X", "Y", "Z"))
SIZES = {"M": 3, "N": 5}


def test_gemm_softmax_is_the_graph_of_the_paper():
    op = gemm_softmax(3, 5, 7)
    assert [(o.name, o.inputs, o.output) for o in op.operations] == [
        ("gemm", ("A", "B"), "C"),
        ("rowmax", ("C",), "D"),
        ("sub", ("C", "D"), "E"),
        ("exp", ("E",), "F"),
        ("rowsum", ("F",), "G"),
        ("div", ("F", "G"), "H"),
    ]
    assert [t.name for t in op.tensors if not op.is_intermediate(t.name)] == ["A", "B", "H"]
    assert op.points(op.operation("gemm")) == 3 * 5 * 7
    assert op.points(op.operation("rowmax")) == 3 * 5
    assert (op.elements("A"), op.elements("B"), op.elements("D"), op.elements("H")) == (
        21,
        35,
        3,
        15,
    )
    assert op.iteration_dims(op.operation("gemm")) == ("M", "K", "N")
    assert op.iteration_dims(op.operation("sub")) == ("M", "N")


def test_producers_and_consumers():
    op = gemm_softmax(1, 1, 1)
    producer = op.producer("F")
    assert producer is not None
    assert producer.name == "exp"
    assert op.producer("A") is None
    assert [o.name for o in op.consumers("F")] == ["rowsum", "div"]
    assert op.consumers("H") == ()
    assert [t.name for t in op.tensors if op.is_intermediate(t.name)] == ["C", "D", "E", "F", "G"]


def test_widths_can_be_chosen():
    op = gemm_softmax(1, 1, 1, operand_bits=16, vector_bits=32, output_bits=16)
    assert {t.name: t.bits for t in op.tensors} == {
        **dict.fromkeys("ABC", 16),
        **dict.fromkeys("DEFG", 32),
        "H": 16,
    }
    assert {o.name: o.bits for o in op.operations} == {
        "gemm": 16,
        **dict.fromkeys(("rowmax", "sub", "exp", "rowsum", "div"), 32),
    }


def test_a_tensor_without_dimensions_has_one_element():
    tensors = (TENSORS[0], Tensor(name="Y", dims=(), bits=8))
    op = build("total", operations=(_operation("sum", ("X",), "Y"),), tensors=tensors, sizes=SIZES)
    assert op.elements("Y") == 1
    assert op.points(op.operation("sum")) == 15


def test_sizes_are_leaves_and_may_be_batches():
    op = gemm_softmax(np.array([1, 2]), 3, np.array([5.0, 7.0]))
    assert len(jax.tree.leaves(op)) == 3
    assert np.array_equal(op.elements("A"), [5, 14])
    assert np.array_equal(op.points(op.operation("gemm")), [15, 42])
    assert hash(gemm_softmax(1, 2, 3).operations) == hash(gemm_softmax(4, 5, 6).operations)


@pytest.mark.parametrize("value", [1, 1.0, 2**53, np.int64(7), np.float32(7), np.array([1, 2])])
def test_whole_numbers_are_sizes(value: float):
    size = check_size("M", value)
    assert np.asarray(size).dtype == np.float64
    assert np.array_equal(size, value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "size M: got 0;"),
        (np.array([4, 0, 5]), "size M: got 0 in row 2;"),
        (np.array([[4, 1], [5, 2.5]]), "size M: got 2.5 in row 4;"),
        (np.array([np.nan]), "size M: got nan in row 1;"),
        (2.0**53 * 2, "expected a whole number from 1 to 2**53"),
        ("4", "size M: got '4'"),
        (True, "size M: got True"),
    ],
)
def test_other_sizes_are_refused(value: object, message: str):
    with pytest.raises(WorkloadError) as error:
        check_size("M", value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ((_operation("a", ("X",), "Q"),), "w.a: got tensor 'Q'; expected one of ['X', 'Y', 'Z']"),
        (
            (_operation("a", ("Y",), "Z"), _operation("b", ("X",), "Y")),
            "w.a: reads 'Y' before it is made; reorder the operations",
        ),
        (
            (_operation("a", ("X",), "Y"), _operation("b", ("X",), "Y")),
            "w.b: makes 'Y' a second time",
        ),
        ((_operation("a", ("X",), "Y", "contract"),), "w.a: got 1 operands; a contraction has 2"),
    ],
)
def test_graphs_that_cannot_be_are_refused(operations: tuple[Operation, ...], message: str):
    with pytest.raises(WorkloadError) as error:
        build("w", operations=operations, tensors=TENSORS, sizes=SIZES)
    assert message in str(error.value)


def test_a_dimension_needs_a_size():
    with pytest.raises(
        WorkloadError, match=r"w\.X: got dimension 'N' without a size; add it to sizes"
    ):
        build("w", operations=(_operation("a", ("X",), "Y"),), tensors=TENSORS, sizes={"M": 3})
