"""The kernels against what else there is: plain jnp, XLA's partitioner, the bare matrix product.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --only attention --quick

Each case runs in a process of its own, since the number of emulated devices is settled when JAX
starts. All its variants are compiled first, then run in turns; their arguments lie on the mesh as
the split asks for. A ratio is the median over the rounds of the ratio within a round. Targets are
judged by the CPU time of the process, all threads together, since the machine is shared; medians
and minima of wall time are shown beside it. Emulated devices share the cores, so a split cannot
beat one device here: what counts is the other forms at the same number of devices.

Shapes lie on both sides of 32 MiB: larger temporary arrays are mapped afresh in every call, which
costs about as much as the arithmetic. The forms that gather are shown as what not to do.

Raw samples with device, versions, date and commit go to a JSON file, and all that is printed is
computed from it.
"""

import argparse
import dataclasses
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from provenance import ROOT, provenance

from jaxcomet.kernels import devices, trials
from jaxcomet.kernels.catalog import KERNELS
from jaxcomet.kernels.compiled import collectives, memory_bytes
from jaxcomet.kernels.measure import from_json, measure, summarize, to_json
from jaxcomet.kernels.partition import Partition
from jaxcomet.kernels.trials import Case, Program

BUDGET_S = 90.0
MIB = 2**20
TIME, TEMPORARY, COLLECTIVES = "CPU time", "temporary bytes", "collectives"

PLAIN, AUTO, FLOOR = "plain, one device", "automatic", "matmul, split alike"
FUSED, SEPARATE, GATHER = "fused, combined", "fused, separate", "rows gathered"
DOT_PRODUCT = "jax.nn, one device"
NAIVE, FLASH, RING, AUTO_KEYS = "naive, one device", "flash, one device", "ring", "automatic, keys"

Builders = Mapping[str, Callable[[], Program]]


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a variant is to reach: a quantity, alone or over another variant's, within a limit.

    Attributes:
      of: the variant.
      over: the variant that it is divided by, or None.
      quantity: TIME, TEMPORARY or COLLECTIVES.
      most: the upper limit, or None.
      least: the lower limit, or None.
    """

    of: str
    over: str | None = None
    quantity: str = TIME
    most: float = math.inf
    least: float = 0.0

    def measured(self, result: Mapping[str, Any]) -> float:
        """The quantity from what a case left."""
        if self.quantity == TIME:
            assert self.over is not None
            samples = from_json(result["samples"])
            return summarize(samples, self.over)[self.of].cpu_ratio.median
        below = 1 if self.over is None else result["programs"][self.over][self.quantity]
        return result["programs"][self.of][self.quantity] / below

    def words(self) -> str:
        """The target in words."""
        over = f" / {self.over}" if self.over else ""
        limit = f">= {self.least:g}" if self.least else f"<= {self.most:g}"
        return f"{self.quantity}: {self.of}{over} {limit}"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One case.

    Attributes:
      build: what compiles each variant, by name, the baseline first.
      devices: how many are emulated.
      targets: what is to be reached.
    """

    build: Callable[[], Builders]
    devices: int
    targets: tuple[Target, ...] = ()


def gemm(name: str, split: str, m: int, n: int, k: int, num_devices: int) -> Builders:
    """GEMM-softmax or GEMM-LayerNorm with n or k split."""
    kernel = KERNELS[name]
    case = Case(
        kernel=kernel,
        sizes={"m": m, "n": n, "k": k},
        mesh=devices.make_mesh(num_devices),
        axis={split: "x"},
    )
    fused, _, gathered, unfused = kernel.strategies
    changed = lambda **fields: lambda: trials.program(dataclasses.replace(case, **fields))  # noqa: E731
    found = {
        PLAIN: lambda: trials.plain(case),
        "matmul, one device": lambda: trials.bare_product(
            dataclasses.replace(case, mesh=None, axis=None)
        ),
        FLOOR: lambda: trials.bare_product(case),
        AUTO: changed(partitioner="auto"),
        FUSED: changed(strategy=fused),
    }
    if split == "n":
        found |= {
            SEPARATE: changed(strategy=fused, options={"reduction": "separate"}),
            "unfused": changed(strategy=unfused),
            GATHER: changed(strategy=gathered),
        }
    return found


def naive_attention(query: Array, key: Array, value: Array, *, causal: bool) -> Array:
    """Attention as it is written first: all scores, their softmax, the product with the values."""
    scores = jnp.einsum("btnh,bsnh->bnts", query, key) / math.sqrt(query.shape[-1])
    if causal:
        scores = jnp.where(jnp.tri(query.shape[1], dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores, axis=-1), value)


def attention(
    q: int, heads: int, num_devices: int, *, causal: bool = True, gradient: bool = False
) -> Builders:
    """Attention by every strategy and split, on one device and on several."""
    case = Case(
        kernel=KERNELS["attention"],
        sizes={"q": q, "heads": heads},
        options={"causal": causal},
        gradient=gradient,
    )
    naive = lambda **arrays: naive_attention(**arrays, causal=causal)  # noqa: E731
    changed = lambda **fields: lambda: trials.program(dataclasses.replace(case, **fields))  # noqa: E731
    found = {
        NAIVE: lambda: trials.compile_on(case, naive, Partition(mesh=None)),
        DOT_PRODUCT: lambda: trials.dot_product_attention(case),
        "unfused, one device": changed(strategy="unfused"),
        "partial, one device": changed(strategy="partial"),
        FLASH: changed(strategy="flash"),
    }
    if num_devices > 1:
        mesh = devices.make_mesh(num_devices)

        def automatic(dimension: str) -> Callable[[], Program]:
            split = Partition(mesh=mesh, axes=((dimension, ("x",)),))
            return lambda: trials.compile_on(case, naive, split)

        sharded = lambda dimension, strategy="flash": changed(  # noqa: E731
            mesh=mesh, axis={dimension: "x"}, strategy=strategy
        )
        found |= {
            "automatic, heads": automatic("heads"),
            AUTO_KEYS: automatic("keys"),
            "automatic, sequence": automatic("sequence"),
            "flash, heads": sharded("heads"),
            "flash, keys merged": sharded("keys"),
            "flash, keys and values gathered": sharded("sequence"),
            RING: sharded("sequence", "ring"),
        }
    return found


def linear(name: str, m: int, n: int, k: int, num_devices: int) -> Builders:
    """A normalization before a product whose contraction is split."""
    kernel = KERNELS[name]
    case = Case(
        kernel=kernel,
        sizes={"m": m, "n": n, "k": k},
        mesh=devices.make_mesh(num_devices),
        axis={"k": "x"},
    )
    changed = lambda **fields: lambda: trials.program(dataclasses.replace(case, **fields))  # noqa: E731
    return {
        PLAIN: lambda: trials.plain(case),
        FLOOR: lambda: trials.bare_product(case),
        AUTO: changed(partitioner="auto"),
        **{strategy: changed(strategy=strategy) for strategy in kernel.strategies},
    }


def cross_entropy(name: str, num_devices: int, **sizes: int) -> Builders:
    """Value and gradient of a cross-entropy whose vocabulary is split."""
    mesh = devices.make_mesh(num_devices)
    case = Case(kernel=KERNELS[name], sizes=sizes, mesh=mesh, gradient=True)

    def losses(logits: Array, labels: Array) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)

    def plain(**arrays: Array) -> Array:
        if "logits" in arrays:
            return losses(**arrays)
        return losses(arrays["x"] @ arrays["weight"], arrays["labels"])

    return {
        PLAIN: lambda: trials.compile_on(case, plain, Partition(mesh=None)),
        AUTO: lambda: trials.compile_on(case, plain, case.partition),
        "reference, automatic": lambda: trials.program(
            dataclasses.replace(case, partitioner="auto")
        ),
        FUSED: lambda: trials.program(case),
        SEPARATE: lambda: trials.program(
            dataclasses.replace(case, options={"reduction": "separate"})
        ),
    }


def _statistics_bytes(rows: int, num_devices: int) -> int:
    """Two float32 a row from each device, gathered and turned, and as much again to merge them."""
    return 32 * rows * num_devices


def _benchmarks() -> dict[str, Benchmark]:
    found: dict[str, Benchmark] = {}
    for name in ("gemm-softmax", "gemm-layernorm"):
        for m, n, k, count in (
            (1024, 4096, 1024, 4),
            (1024, 4096, 1024, 8),
            (512, 1024, 1024, 4),
            (128, 8192, 512, 4),
        ):
            large = (m, n) == (1024, 4096)
            targets = (
                Target(of=FUSED, quantity=COLLECTIVES, most=1),
                Target(of=FUSED, quantity=TEMPORARY, most=_statistics_bytes(m, count)),
                *(
                    (
                        Target(of=FUSED, over=AUTO, most=1.02),
                        Target(of=FUSED, over=FLOOR, most=1.10),
                    )
                    if large
                    else ()
                ),
            )
            found[f"{name} n-split {m}x{n}x{k} on {count}"] = Benchmark(
                build=lambda name=name, m=m, n=n, k=k, count=count: gemm(name, "n", m, n, k, count),
                devices=count,
                targets=targets,
            )
        for m, n, k, count in ((1024, 4096, 1024, 8), (512, 1024, 1024, 4)):
            large = (m, n) == (1024, 4096)
            found[f"{name} k-split {m}x{n}x{k} on {count}"] = Benchmark(
                build=lambda name=name, m=m, n=n, k=k, count=count: gemm(name, "k", m, n, k, count),
                devices=count,
                targets=(Target(of=AUTO, over=FUSED, least=1.5),) if large else (),
            )
    found["attention causal 4096, 4 heads on 4"] = Benchmark(
        build=lambda: attention(4096, 4, 4),
        devices=4,
        targets=(
            Target(of=FLASH, over=NAIVE, most=0.45),
            Target(of=FLASH, over=NAIVE, quantity=TEMPORARY, most=1 / 50),
            Target(of=RING, over=NAIVE, most=0.45),
            Target(of=RING, over=AUTO_KEYS, most=0.25),
        ),
    )
    found["attention causal 1024, 8 heads on 4"] = Benchmark(
        build=lambda: attention(1024, 8, 4), devices=4
    )
    for causal in (True, False):
        mask = "causal" if causal else "full"
        found[f"attention {mask} gradient 1024, 8 heads on 1"] = Benchmark(
            build=lambda causal=causal: attention(1024, 8, 1, causal=causal, gradient=True),
            devices=1,
            targets=(
                Target(of=FLASH, over=NAIVE, most=0.8),
                Target(of=FLASH, over=NAIVE, quantity=TEMPORARY, most=0.3),
            ),
        )
    for m, n, k in ((512, 1024, 1024), (512, 4096, 1024)):
        found[f"layernorm-linear k-split {m}x{n}x{k} on 4"] = Benchmark(
            build=lambda m=m, n=n, k=k: linear("layernorm-linear", m, n, k, 4),
            devices=4,
            targets=(Target(of="deferred", over=AUTO, most=1.0),),
        )
    found["cross-entropy gradient 2048x32000 on 4"] = Benchmark(
        build=lambda: cross_entropy("cross-entropy", 4, tokens=2048, vocab=32_000),
        devices=4,
        targets=(
            Target(of=FUSED, over=AUTO, most=1.02),
            Target(of=FUSED, quantity=COLLECTIVES, most=1),
            Target(of=FUSED, quantity=TEMPORARY, most=_statistics_bytes(2048, 4)),
        ),
    )
    found["linear-cross-entropy gradient 1024x32000x512 on 4"] = Benchmark(
        build=lambda: cross_entropy("linear-cross-entropy", 4, tokens=1024, vocab=32_000, k=512),
        devices=4,
        targets=(
            # The logits are computed twice so as not to be kept: four products for three.
            Target(of=FUSED, over=AUTO, most=4 / 3),
            Target(of=FUSED, over=AUTO, quantity=TEMPORARY, most=0.5),
        ),
    )
    return found


BENCHMARKS = _benchmarks()


def work(name: str, rounds: int, out: Path) -> None:
    """Runs one case in this process and leaves its samples and programs in a file."""
    benchmark = BENCHMARKS[name]
    devices.emulate(benchmark.devices)
    programs = {label: build() for label, build in benchmark.build().items()}
    samples = measure(programs, rounds=rounds, budget_s=BUDGET_S)
    result = {
        **provenance(),
        "devices": benchmark.devices,
        "samples": to_json(samples),
        "programs": {label: _sizes(program) for label, program in programs.items()},
    }
    out.write_text(json.dumps(result), encoding="utf-8")


def _sizes(program: Program) -> dict[str, Any]:
    found = collectives(program.compiled)
    memory = memory_bytes(program.compiled)
    return {
        COLLECTIVES: len(found),
        "collective list": [dataclasses.asdict(one) for one in found],
        TEMPORARY: memory.temporary_bytes,
        "argument bytes": memory.argument_bytes,
        "output bytes": memory.output_bytes,
    }


def show(name: str, result: Mapping[str, Any]) -> list[tuple[str, str, float, bool]]:
    """Prints a case and returns (case, target, measured, met) for each of its targets."""
    samples = from_json(result["samples"])
    baseline = next(iter(samples))
    print(f"\n{name}: ratios to {baseline!r}, {len(samples[baseline])} rounds")
    print(
        f"{'':34s}{'CPU':>7s}{'wall':>7s}{'min':>7s}{'CPU ms':>10s}{'wall ms':>10s}{'min ms':>10s}"
        f"{'temp MiB':>10s}  collectives"
    )
    for label, one in summarize(samples, baseline).items():
        program = result["programs"][label]
        kinds = [collective["kind"] for collective in program["collective list"]]
        counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) or "-"
        times = (one.median_cpu_s, one.median_wall_s, one.min_wall_s)
        print(
            f"{label:34s}{one.cpu_ratio.median:7.2f}{one.wall_ratio.median:7.2f}"
            f"{one.min_wall_ratio:7.2f}"
            + "".join(f"{1e3 * seconds:10.2f}" for seconds in times)
            + f"{program[TEMPORARY] / MIB:10.2f}  {counted}"
        )
    reached = []
    for target in BENCHMARKS[name].targets:
        measured = target.measured(result)
        met = target.least <= measured <= target.most
        reached.append((name, target.words(), measured, met))
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "out" / "kernels.json",
        help="where the JSON goes (default: out/kernels.json, which git ignores)",
    )
    parser.add_argument("--only", metavar="CASE", help="cases whose name holds these words")
    parser.add_argument("--quick", action="store_true", help="3 rounds each instead of 15")
    parser.add_argument("--worker", metavar="CASE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    rounds = 3 if options.quick else 15
    if options.worker:
        work(options.worker, rounds, options.out)
        return
    chosen = [name for name in BENCHMARKS if (options.only or "") in name]
    if not chosen:
        parser.error(f"--only: got {options.only!r}; expected part of: {'; '.join(BENCHMARKS)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results, reached = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            left = Path(folder) / "case.json"
            words = [sys.executable, __file__, "--worker", name, "--out", str(left)]
            subprocess.run([*words, *(["--quick"] if options.quick else [])], check=True)
            results[name] = json.loads(left.read_text(encoding="utf-8"))
            reached += show(name, results[name])
            record = {"benchmark": "kernels", "quick": options.quick, "cases": results}
            options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\nTargets")
    for name, target, measured, met in reached:
        print(f"{'met    ' if met else 'NOT MET'} {measured:12.4g}  {name}: {target}")
    print(f"{sum(met for *_, met in reached)} of {len(reached)} met")


if __name__ == "__main__":
    main()
