"""GEMM followed by a LayerNorm or RMSNorm over its columns, as elementary operations.

Dimensions: M rows, N columns, K contracted. A[M,K] and B[K,N] are inputs. With C = A B:

* LayerNorm (Ba, Kiros, Hinton 2016, arXiv:1607.06450, eq. 4): D = row sums of C, U = D / N,
  E = C - U, F = E * E, G = row sums of F, R = sqrt(G / N + eps), H = E / R. The variance is taken
  of centred values, as it must be for numerical safety, so C is read again after the first sum and
  E after the second one: two reductions of M x 1 results.
* RMSNorm (Zhang, Sennrich 2019, arXiv:1910.07467, eq. 4): F = C * C, G, R as above, H = C / R.

With `affine`, H is multiplied by gamma[N] and, for LayerNorm, shifted by beta[N]. Dividing by N and
adding eps are folded into the operation on M values that follows.
"""

from typing import Literal

from jaxcomet.workload import CompoundOp, Operation, OperationKind, Tensor, WorkloadError, build


def gemm_layernorm(
    M: object,
    N: object,
    K: object,
    *,
    norm: Literal["layer", "rms"] = "layer",
    affine: bool = False,
    operand_bits: int = 8,
    vector_bits: int = 16,
    output_bits: int = 8,
) -> CompoundOp:
    """LayerNorm(A B) or RMSNorm(A B) along N.

    Args:
      M: rows; a whole number >= 1, or an array of them (a batch of shapes).
      N: columns.
      K: contracted extent.
      norm: ``layer`` or ``rms``.
      affine: multiply by a learned gamma and, for LayerNorm, add a learned beta.
      operand_bits: bits of A, B and of the GEMM's result C.
      vector_bits: bits at which the vector engine reads and writes, of the intermediates after C,
        and of gamma and beta.
      output_bits: bits of the result in the outermost memory.

    Returns:
      The compound operation ``gemm-layernorm``.

    Raises:
      WorkloadError: an unknown norm, or a size that is no whole number >= 1.

    Example:
      >>> [op.name for op in gemm_layernorm(256, 256, 128).operations]
      ['gemm', 'rowsum', 'mean', 'sub', 'square', 'squaresum', 'root', 'div']
    """
    if norm not in ("layer", "rms"):
        raise WorkloadError(f"norm: got {norm!r}; expected layer or rms")
    matrix, row, column = ("M", "N"), ("M",), ("N",)
    dims: dict[str, tuple[tuple[str, ...], int]] = {
        "A": (("M", "K"), operand_bits),
        "B": (("K", "N"), operand_bits),
        "C": (matrix, operand_bits),
    }
    operations = [
        Operation(
            name="gemm",
            kind="contract",
            function="mac",
            inputs=("A", "B"),
            output="C",
            bits=operand_bits,
        )
    ]

    def add(
        name: str, kind: OperationKind, function: str, inputs: str, output: str, shape: tuple
    ) -> None:
        operations.append(
            Operation(
                name=name,
                kind=kind,
                function=function,
                inputs=tuple(inputs.split()),
                output=output,
                bits=vector_bits,
            )
        )
        dims[output] = (shape, vector_bits)

    centred = "C"
    if norm == "layer":
        add("rowsum", "reduce", "add", "C", "D", row)
        add("mean", "map", "mul", "D", "U", row)
        add("sub", "map", "add", "C U", "E", matrix)
        centred = "E"
    add("square", "map", "mul", centred, "F", matrix)
    add("squaresum", "reduce", "add", "F", "G", row)
    add("root", "map", "sqrt", "G", "R", row)
    add("div", "map", "div", f"{centred} R", "H", matrix)
    if affine:
        dims["gamma"] = (column, vector_bits)
        add("scale", "map", "mul", "H gamma", "Y", matrix)
        if norm == "layer":
            dims["beta"] = (column, vector_bits)
            add("shift", "map", "add", "Y beta", "Z", matrix)
    last = operations[-1].output
    dims[last] = (matrix, output_bits)
    return build(
        "gemm-layernorm",
        operations=tuple(operations),
        tensors=tuple(Tensor(name=n, dims=d, bits=b) for n, (d, b) in dims.items()),
        sizes={"M": M, "N": N, "K": K},
    )
