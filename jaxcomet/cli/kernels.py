"""`jaxcomet kernels`: the sharded kernels, listed, run and timed on emulated or real devices.

The one idea: the number of emulated devices is settled before JAX starts, so nothing here makes an
array before the devices are there.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxcomet.cli import flags, tables
from jaxcomet.cli.errors import InputError, near
from jaxcomet.cli.options import Json, parse_whole
from jaxcomet.kernels.catalog import KERNELS
from jaxcomet.kernels.description import Kernel, Option, OptionValue
from jaxcomet.kernels.partition import PARTITIONERS

if TYPE_CHECKING:
    from jaxcomet.kernels.trials import Case

_MESH_NAMES = ("x", "y", "z")
_MOST_DEVICES = 256
_DTYPES = ("float32", "bfloat16", "float16", "float64")

KernelName = Annotated[
    str, typer.Argument(metavar="KERNEL", help=f"The kernel: {', '.join(KERNELS)}.")
]
Devices = Annotated[
    int | None,
    typer.Option(
        "--devices", metavar="N", help="Emulated devices, or real ones to use (with --real); or 8."
    ),
]
MeshSizes = Annotated[
    str | None,
    typer.Option(
        "--mesh", metavar="AxB", help="Devices along the axes x, y, z of the mesh, e.g. 2x4."
    ),
]
AxisWords = Annotated[
    str | None,
    typer.Option(
        "--axis",
        metavar="DIM=AXIS,...",
        help="What each mesh axis splits, e.g. n=x,m=y, or m=x+y; an axis alone is the kernel's "
        "usual dimension.",
    ),
]
Dtype = Annotated[
    str, typer.Option("--dtype", metavar="|".join(_DTYPES), help="Dtype of the arguments.")
]
Gradient = Annotated[bool, typer.Option("--grad", help="Compute the gradients of all arguments.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the random arguments.")]
Real = Annotated[bool, typer.Option("--real", help="Use the devices that JAX finds; emulate none.")]
Rounds = Annotated[
    int, typer.Option("--rounds", metavar="N", help="Timed runs, after some to warm up.")
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
    """The flags of kernels that were given, by name and as they were written.

    Attributes:
      sizes: sizes.
      options: options.
    """

    sizes: dict[str, str]
    options: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where a kernel is to run, as it was written.

    Attributes:
      devices: how many, or None.
      mesh: their arrangement, or None.
      axis: what the axes of the mesh split, or None.
      real: whether the devices are those that JAX finds.
    """

    devices: int | None
    mesh: str | None
    axis: str | None
    real: bool


def _takers(name: str, kind: str) -> str:
    taken = [k.name for k in KERNELS.values() if name in [one.name for one in getattr(k, kind)]]
    return "all" if len(taken) == len(KERNELS) else ", ".join(taken)


def _size_flags() -> dict[str, Any]:
    found = {}
    for size in (size for kernel in KERNELS.values() for size in kernel.sizes):
        text = f"{size.text.removesuffix('.')} ({_takers(size.name, 'sizes')})."
        option = typer.Option(flags.flag(size.name), metavar=size.name.upper(), help=text)
        found.setdefault(size.name, Annotated[str | None, option])
    return found


def _option_flags() -> dict[str, Any]:
    found = {}
    for option in (option for kernel in KERNELS.values() for option in kernel.options):
        text = f"{option.text.removesuffix('.')} ({_takers(option.name, 'options')})."
        name = flags.flag(option.name)
        if isinstance(option.default, bool):
            both = f"{name}/--no-{name.removeprefix('--')}"
            hint = Annotated[bool | None, typer.Option(both, help=text)]
        else:
            metavar = "|".join(option.values) or "NUMBER"
            hint = Annotated[str | None, typer.Option(name, metavar=metavar, help=text)]
        found.setdefault(option.name, hint)
    return found


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the flags of all kernels in place of its parameter `given`."""
    return flags.expanded(command, {"sizes": _size_flags(), "options": _option_flags()}, Given)


def kernels() -> None:
    r"""The sharded kernels, listed, run and timed, on emulated devices or real ones.

    \b
    Examples:
      jaxcomet kernels list
      jaxcomet kernels run gemm-softmax --devices 8
      jaxcomet kernels bench attention --causal --devices 4
    """


def list_kernels(as_json: Json = False) -> None:
    r"""Lists the kernels: what they compute, sizes, strategies and what each may split.

    \b
    Examples:
      jaxcomet kernels list
      jaxcomet kernels list --json
    """
    if as_json:
        tables.print_json([_described(kernel) for kernel in KERNELS.values()])
        return
    columns = ("kernel", "computes", "sizes (defaults)", "strategy", "may split")
    table = tables.grid("Kernels", columns, left=5, fold=columns[1:3])
    for kernel in KERNELS.values():
        splits = kernel.strategies or {"-": kernel.split_of(None)}
        sizes = " ".join(f"{name}={value}" for name, value in kernel.filled({}).items())
        marked = [
            " ".join(d + "*" if d == split.default else d for d in split.dimensions)
            for split in splits.values()
        ]
        table.add_row(kernel.name, kernel.summary, sizes, "\n".join(splits), "\n".join(marked))
    tables.show(table)
    tables.output().print("The first strategy is the usual one; * marks its usual dimension.")


def _described(kernel: Kernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "summary": kernel.summary,
        "sizes": [
            {**dataclasses.asdict(size), "flag": flags.flag(size.name)} for size in kernel.sizes
        ],
        "default_sizes": kernel.filled({}),
        "arguments": [
            {"name": one.name, "shape": list(one.shape), "differentiable": one.differentiable}
            for one in kernel.operands
        ],
        "strategies": {
            name: {"dimensions": list(split.dimensions), "default_dimension": split.default}
            for name, split in kernel.strategies.items()
        },
        "dimensions": list(kernel.split_of(None).dimensions),
        "default_dimension": kernel.split_of(None).default,
        "options": [
            {"name": o.name, "text": o.text, "default": o.default, "values": list(o.values)}
            for o in kernel.options
        ],
    }


@_with_flags
def run(
    *,
    kernel: KernelName,
    given: Given,
    devices: Devices = None,
    mesh: MeshSizes = None,
    axis: AxisWords = None,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", metavar="NAME", help="`jaxcomet kernels list` shows them."),
    ] = None,
    partitioner: Annotated[
        str,
        typer.Option(
            "--partitioner",
            metavar="|".join(PARTITIONERS),
            help="Whether the strategy or XLA decides what moves.",
        ),
    ] = "shard_map",
    dtype: Dtype = "float32",
    grad: Gradient = False,
    rounds: Rounds = 10,
    seed: Seed = 0,
    real: Real = False,
    as_json: Json = False,
) -> None:
    r"""Runs one kernel: its error against float64, its time, what it moves and what it holds.

    \b
    Examples:
      jaxcomet kernels run gemm-softmax --m 512 --n 1024 --k 1024 --mesh 2x4 --axis n=x,m=y
      jaxcomet kernels run attention --q 4096 --causal --strategy ring --devices 4 --grad
      jaxcomet kernels run layernorm-linear --dtype bfloat16 --partitioner auto --json
    """
    found = _kernel(kernel)
    if partitioner not in PARTITIONERS:
        raise InputError(
            f"--partitioner: got {partitioner!r}; expected {' or '.join(PARTITIONERS)}"
        )
    found.split_of(strategy)
    place = Place(devices=devices, mesh=mesh, axis=axis, real=real)
    with _case(found, given, place, dtype=dtype, gradient=grad, rounds=rounds, seed=seed) as case:
        from jaxcomet.cli.kernel_reports import report_run

        chosen = dataclasses.replace(case, strategy=strategy, partitioner=partitioner)
        report_run(chosen, rounds, as_json)


@_with_flags
def bench(
    *,
    kernel: KernelName,
    given: Given,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="NAME,...",
            help="Variants to compare: strategies, auto (XLA's partitioner), one-device (the plain "
            "form), matmul (the bare product), dot-product-attention (of jax.nn); or all.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="NAME",
            help="The variant that the others are divided by; auto if left out, or one-device "
            "without a mesh.",
        ),
    ] = None,
    devices: Devices = None,
    mesh: MeshSizes = None,
    axis: AxisWords = None,
    dtype: Dtype = "float32",
    grad: Gradient = False,
    rounds: Rounds = 15,
    seed: Seed = 0,
    real: Real = False,
    as_json: Json = False,
) -> None:
    r"""Times the strategies of a kernel in turns, with XLA's partitioner and the plain form.

    Ratios are those within a round, and CPU time counts all threads: on a shared machine these tell
    more than seconds do.

    \b
    Examples:
      jaxcomet kernels bench gemm-softmax --m 1024 --n 4096 --k 1024 --devices 8 --axis k=x
      jaxcomet kernels bench attention --q 2048 --causal --against flash,ring,auto --devices 4 \
        --axis sequence=x --grad
    """
    found = _kernel(kernel)
    place = Place(devices=devices, mesh=mesh, axis=axis, real=real)
    with _case(found, given, place, dtype=dtype, gradient=grad, rounds=rounds, seed=seed) as case:
        from jaxcomet.cli.kernel_reports import report_bench
        from jaxcomet.kernels.trials import variants

        known = variants(case)
        wanted = list(known)
        if against is not None:
            wanted = list(dict.fromkeys(word.strip() for word in against.split(",")))
        if baseline is None:
            usual = "auto" if case.mesh is not None else "one-device"
            baseline = usual if usual in wanted else wanted[0]
        for option, names in (("--against", wanted), ("--baseline", [baseline])):
            for name in names:
                if name not in known:
                    raise InputError(f"{option}: got {name!r}; {near(name, known)}")
        wanted = list(dict.fromkeys([baseline, *wanted]))
        report_bench(case, {name: known[name] for name in wanted}, baseline, rounds, as_json)


def _kernel(name: str) -> Kernel:
    found = KERNELS.get(name.replace("_", "-"))
    if found is None:
        raise InputError(f"KERNEL: got {name!r}; {near(name, KERNELS)}")
    return found


@contextlib.contextmanager
def _case(
    kernel: Kernel,
    given: Given,
    place: Place,
    *,
    dtype: str,
    gradient: bool,
    rounds: int,
    seed: int,
) -> Iterator["Case"]:
    """What is asked for, once the devices are there; float64 is on inside for that dtype.

    Raises:
      InputError: words that cannot be used.
      KernelError: devices that cannot be had.
    """
    from jaxcomet._compat import enable_x64
    from jaxcomet.kernels.devices import emulate, make_mesh
    from jaxcomet.kernels.trials import Case

    sizes, options = _sizes(kernel, given.sizes), _options(kernel, given.options)
    if dtype not in _DTYPES:
        raise InputError(f"--dtype: got {dtype!r}; expected {' or '.join(_DTYPES)}")
    for option, value, least in (("--rounds", rounds, 1), ("--seed", seed, 0)):
        if value < least:
            raise InputError(f"{option}: got {value}; expected at least {least}")
    shape = None if place.mesh is None else _mesh_shape(place.mesh)
    axis = None if place.axis is None else _axis(place.axis)
    count = _num_devices(place.devices, shape, place.real)
    if not place.real:
        emulate(count)
    if shape is None and count > 1:
        shape = (count,)
    mesh = None if shape is None else make_mesh(shape, _MESH_NAMES[: len(shape)])
    with enable_x64(dtype == "float64"):
        yield Case(
            kernel=kernel,
            sizes=sizes,
            dtype=dtype,
            mesh=mesh,
            axis=axis,
            options=options,
            gradient=gradient,
            seed=seed,
        )


def _sizes(kernel: Kernel, words: Mapping[str, str]) -> dict[str, int]:
    names = [size.name for size in kernel.sizes]
    found = {}
    for name, word in words.items():
        if name not in names:
            raise InputError(
                f"{flags.flag(name)}: no size of {kernel.name}; it has {flags.listed(names)}"
            )
        number = parse_whole(word)
        if number is None:
            raise InputError(f"{flags.flag(name)}: got {word!r}; expected a whole number from 1")
        found[name] = int(number)
    return found


def _options(kernel: Kernel, words: Mapping[str, Any]) -> dict[str, OptionValue]:
    by_name = {option.name: option for option in kernel.options}
    for name in words:
        if name not in by_name:
            raise InputError(
                f"{flags.flag(name)}: no option of {kernel.name}; it has "
                f"{flags.listed(by_name) if by_name else 'none'}"
            )
    return {name: _option_value(by_name[name], word) for name, word in words.items()}


def _option_value(option: Option, word: Any) -> OptionValue:
    if isinstance(option.default, bool):
        return word
    if option.values:
        if word not in option.values:
            allowed = " or ".join(option.values)
            raise InputError(f"{flags.flag(option.name)}: got {word!r}; expected {allowed}")
        return word
    if not re.fullmatch(r"0(\.\d+)?|\.\d+", word):
        raise InputError(
            f"{flags.flag(option.name)}: got {word!r}; expected a number from 0 below 1"
        )
    return float(word)


def _mesh_shape(word: str) -> tuple[int, ...]:
    parts = word.lower().split("x")
    if len(parts) > len(_MESH_NAMES) or not all(re.fullmatch(r"[1-9]\d{0,5}", p) for p in parts):
        raise InputError(
            f"--mesh: got {word!r}; expected up to {len(_MESH_NAMES)} whole numbers, e.g. 2x4"
        )
    return tuple(map(int, parts))


def _num_devices(asked: int | None, shape: tuple[int, ...] | None, real: bool) -> int:
    """How many devices there are to be, checked against the mesh."""
    if shape is not None:
        wanted = math.prod(shape)
        if asked is not None and asked != wanted:
            raise InputError(
                f"--mesh: got {'x'.join(map(str, shape))}, {wanted} devices, with --devices "
                f"{asked}; expected the same number; leave one of them out"
            )
    elif asked is not None:
        wanted = asked
    elif real:
        import jax

        wanted = jax.device_count()
    else:
        wanted = 8
    if not 1 <= wanted <= _MOST_DEVICES:
        raise InputError(f"--devices: got {wanted}; expected 1 to {_MOST_DEVICES}")
    return wanted


def _axis(word: str) -> dict[str, tuple[str, ...]] | tuple[str, ...]:
    """Mesh axes by dimension, or those of the kernel's usual dimension."""
    found: dict[str, tuple[str, ...]] = {}
    for part in word.split(","):
        dimension, equals, names = (piece.strip() for piece in part.partition("="))
        if not equals and "," not in word:
            return tuple(name.strip() for name in word.split("+"))
        if not (dimension and names) or dimension in found:
            raise InputError(f"--axis: got {word!r}; expected e.g. n=x,m=y, or x+y alone")
        found[dimension] = tuple(name.strip() for name in names.split("+"))
    return found
