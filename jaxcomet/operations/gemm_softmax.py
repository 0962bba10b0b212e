"""GEMM followed by a softmax over its columns, as six elementary operations.

Dimensions: M rows, N columns, K contracted. A[M,K] and B[K,N] are inputs, H[M,N] = softmax(A B) is
  the output.
Widths follow the authors' program (d-matrix-ai/comet 917af0d, test/iterative_mapper/mapping.yaml):
  operands, GEMM result and
output of 8 bits, vector operations of 16 bits.
"""

from jaxcomet.workload import CompoundOp, Operation, OperationKind, Tensor, build


def gemm_softmax(
    M: object,
    N: object,
    K: object,
    *,
    operand_bits: int = 8,
    vector_bits: int = 16,
    output_bits: int = 8,
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

    Returns:
      The compound operation ``gemm-softmax``.

    Raises:
      WorkloadError: a size that is no whole number >= 1.

    Example:
      >>> [op.name for op in gemm_softmax(256, 256, 128).operations]
      ['gemm', 'rowmax', 'sub', 'exp', 'rowsum', 'div']
    """
    matrix, row = ("M", "N"), ("M",)
    vector = vector_bits

    def op(
        name: str,
        kind: OperationKind,
        function: str,
        inputs: tuple[str, ...],
        output: str,
        bits: int,
    ) -> Operation:
        return Operation(
            name=name, kind=kind, function=function, inputs=inputs, output=output, bits=bits
        )  # pyright: ignore[reportArgumentType]

    return build(
        "gemm-softmax",
        operations=(
            op("gemm", "contract", "mac", ("A", "B"), "C", operand_bits),
            op("rowmax", "reduce", "max", ("C",), "D", vector),
            op("sub", "map", "add", ("C", "D"), "E", vector),
            op("exp", "map", "exp", ("E",), "F", vector),
            op("rowsum", "reduce", "add", ("F",), "G", vector),
            op("div", "map", "div", ("F", "G"), "H", vector),
        ),
        tensors=(
            Tensor(name="A", dims=("M", "K"), bits=operand_bits),
            Tensor(name="B", dims=("K", "N"), bits=operand_bits),
            Tensor(name="C", dims=matrix, bits=operand_bits),
            Tensor(name="D", dims=row, bits=vector),
            Tensor(name="E", dims=matrix, bits=vector),
            Tensor(name="F", dims=matrix, bits=vector),
            Tensor(name="G", dims=row, bits=vector),
            Tensor(name="H", dims=matrix, bits=output_bits),
        ),
        sizes={"M": M, "N": N, "K": K},
    )
