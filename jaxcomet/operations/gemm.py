"""A plain GEMM: C[M,N] = A[M,K] B[K,N]."""

from jaxcomet.workload import CompoundOp, Operation, Tensor, build


def gemm(
    M: object, N: object, K: object, *, operand_bits: int = 8, output_bits: int = 8
) -> CompoundOp:
    """A matrix product, M x K by K x N.

    Args:
      M: rows; a whole number >= 1, or an array of them (a batch of shapes).
      N: columns.
      K: contracted extent.
      operand_bits: bits of A and B, and of partial sums inside the machine.
      output_bits: bits of C in the outermost memory.

    Returns:
      The compound operation ``gemm``.

    Raises:
      WorkloadError: a size that is no whole number >= 1.

    Example:
      >>> gemm(512, 512, 512).points(gemm(512, 512, 512).operations[0])
      134217728.0
    """
    return build(
        "gemm",
        operations=(
            Operation(
                name="gemm",
                kind="contract",
                function="mac",
                inputs=("A", "B"),
                output="C",
                bits=operand_bits,
            ),
        ),
        tensors=(
            Tensor(name="A", dims=("M", "K"), bits=operand_bits),
            Tensor(name="B", dims=("K", "N"), bits=operand_bits),
            Tensor(name="C", dims=("M", "N"), bits=output_bits),
        ),
        sizes={"M": M, "N": N, "K": K},
    )
