"""GEMM followed by a softmax over its columns, as elementary operations.

Dimensions: M rows, N columns, K contracted. A[M,K] and B[K,N] are inputs, H[M,N] = softmax(A B) is
the output. Widths follow the authors' program (d-matrix-ai/comet 917af0d,
test/iterative_mapper/mapping.yaml): operands, GEMM result and output of 8 bits, vector operations
of 16 bits.
"""

from jaxcomet.workload import CompoundOp, Operation, Tensor, build


def gemm_softmax(
    M: object,
    N: object,
    K: object,
    *,
    operand_bits: int = 8,
    vector_bits: int = 16,
    output_bits: int = 8,
    fused_exp: bool = False,
) -> CompoundOp:
    """softmax(A B) along N: GEMM, row maximum, subtraction, exponential, row sum, division.

    Args:
      M: rows; a whole number >= 1, or an array of them (a batch of shapes).
      N: columns.
      K: contracted extent.
      operand_bits: bits of A, B and of the GEMM's result C.
      vector_bits: bits at which the vector engine reads and writes, and of intermediates D to G in
        the outermost memory.
      output_bits: bits of H in the outermost memory.
      fused_exp: one operation subtracts the maximum and takes the exponential.

    Returns:
      The compound operation ``gemm-softmax``.

    Raises:
      WorkloadError: a size that is no whole number >= 1.

    Example:
      >>> [op.name for op in gemm_softmax(256, 256, 128).operations]
      ['gemm', 'rowmax', 'sub', 'exp', 'rowsum', 'div']
    """
    matrix, row = ("M", "N"), ("M",)
    gemm = Operation(
        name="gemm",
        kind="contract",
        function="mac",
        inputs=("A", "B"),
        output="C",
        bits=operand_bits,
    )
    tensors = (
        Tensor(name="A", dims=("M", "K"), bits=operand_bits),
        Tensor(name="B", dims=("K", "N"), bits=operand_bits),
        Tensor(name="C", dims=matrix, bits=operand_bits),
        Tensor(name="D", dims=row, bits=vector_bits),
        Tensor(name="E", dims=matrix, bits=vector_bits),
        Tensor(name="F", dims=matrix, bits=vector_bits),
        Tensor(name="G", dims=row, bits=vector_bits),
        Tensor(name="H", dims=matrix, bits=output_bits),
    )
    return build(
        "gemm-softmax",
        operations=(gemm, *softmax("CDEFGH", vector_bits, fused_exp=fused_exp)),
        tensors=tuple(t for t in tensors if not (fused_exp and t.name == "E")),
        sizes={"M": M, "N": N, "K": K},
    )


def softmax(names: str | tuple[str, ...], bits: int, *, fused_exp: bool) -> tuple[Operation, ...]:
    """The elementary operations of a row softmax.

    Args:
      names: six tensors: input, row maximum, difference, exponential, row sum, output.
      bits: bits at which they move inside the machine.
      fused_exp: one operation subtracts and takes the exponential; the difference is not made.
    """
    given, largest, difference, powers, total, result = names
    rowmax = Operation(
        name="rowmax", kind="reduce", function="max", inputs=(given,), output=largest, bits=bits
    )
    sub = Operation(
        name="sub",
        kind="map",
        function="add",
        inputs=(given, largest),
        output=difference,
        bits=bits,
    )
    exp = Operation(
        name="exp",
        kind="map",
        function="exp",
        inputs=(given, largest) if fused_exp else (difference,),
        output=powers,
        bits=bits,
    )
    rowsum = Operation(
        name="rowsum", kind="reduce", function="add", inputs=(powers,), output=total, bits=bits
    )
    div = Operation(
        name="div", kind="map", function="div", inputs=(powers, total), output=result, bits=bits
    )
    return (rowmax, exp, rowsum, div) if fused_exp else (rowmax, sub, exp, rowsum, div)
