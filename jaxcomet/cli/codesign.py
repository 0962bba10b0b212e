"""`jaxcomet codesign`: machines and mappings chosen together, for suites of workloads.

The one idea: whatever is shown is read from the files of the folder, so that what `run` prints at
its end and what `show` prints a week later is the same.
"""

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from jaxcomet.cli import options as words
from jaxcomet.cli import tables
from jaxcomet.cli.errors import InputError, near
from jaxcomet.cli.files import check_writable

if TYPE_CHECKING:
    from jaxcomet.optimize.joint.suites import WorkloadSuite
    from jaxcomet.optimize.joint.sweep import Progress

_OBJECTIVES = ("latency", "energy", "edp", "edap")
_ACROSS = ("geomean", "total", "worst")
_METHODS = ("auto", "gradient", "local", "random", "cma", "nested", "enumerate")
_TILES = ("padded", "divisors", "any")
_INTERRUPTED = 130  # as a shell says of a program that SIGINT ended
_INFEASIBLE = 1
_MOST_TARGETS = 1024
_AGAIN_S = 0.05  # until a Ctrl-C that was lost is sent again


class Group(typer.core.TyperGroup):
    """A group in which a first word that names no subcommand is the first word of `run`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts the name of the command in front where it is left out; help is that of `run`."""
        if not args:
            args = ["run", "--help"]
        elif args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


def run(
    spaces: Annotated[
        list[str],
        typer.Argument(metavar="SPACE", help="Search spaces: names or TOML files."),
    ],
    suites: Annotated[
        list[str] | None,
        typer.Option(
            "--workloads",
            metavar="NAME|FILE",
            help="A suite of workloads that share a machine: its name or TOML file (three); may be "
            "repeated: every suite on every space is a task.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Folder for results and checkpoints; required."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what stands in the folder.")
    ] = False,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            "--objective",
            metavar="|".join(_OBJECTIVES),
            help="What is minimised (edp): products of energy, delay and area; may be repeated: "
            "all are searched side by side.",
        ),
    ] = None,
    pareto: Annotated[
        str | None,
        typer.Option(
            "--pareto",
            metavar="NUMBER",
            help="So many weightings of latency, energy and area besides, for a Pareto front.",
        ),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            "--budget",
            metavar="NAME=VALUE",
            help="Another limit of a budget of the space, in its unit, e.g. area=400; may be "
            "repeated for several budgets.",
        ),
    ] = None,
    ladder: Annotated[
        str | None,
        typer.Option(
            "--ladder",
            metavar="NAME=VALUE,...",
            help="Several limits of a budget side by side, e.g. area=300,400,500.",
        ),
    ] = None,
    across: Annotated[
        str,
        typer.Option(
            "--across",
            metavar="|".join(_ACROSS),
            help="Latency and energy over workloads: geometric mean, weighted sum, or the worst "
            "ratio to the start.",
        ),
    ] = "geomean",
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help=f"{', '.join(_METHODS[:-1])} or {_METHODS[-1]} (all machines: proven).",
        ),
    ] = "gradient",
    seeds: Annotated[
        str,
        typer.Option(
            "--seeds", metavar="NUMBER", help="Seeds of the descent, for each target of a task."
        ),
    ] = "256",
    steps: Annotated[
        str, typer.Option("--steps", metavar="NUMBER", help="Steps of each seed.")
    ] = "60",
    chains: Annotated[
        str,
        typer.Option("--chains", metavar="NUMBER", help="Chains of local moves for each target."),
    ] = "8",
    evaluations: Annotated[
        str | None,
        typer.Option("--evaluations", metavar="NUMBER", help="Most evaluations of a task."),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            "--time-limit", metavar="SECONDS", help="Of a task; then its best so far counts."
        ),
    ] = None,
    derive_buffers: Annotated[
        bool,
        typer.Option(
            "--derive-buffers",
            help="In the descent, capacities marked as derived follow from the mappings.",
        ),
    ] = False,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            metavar="OPERATION=NAME",
            help="Map this operation by this strategy only; may be repeated; all are tried if "
            "left out.",
        ),
    ] = None,
    tiles: Annotated[
        str, typer.Option("--tiles", metavar="|".join(_TILES), help="Sizes of tiles, as for map.")
    ] = "padded",
    key: Annotated[
        str, typer.Option("--key", metavar="SEED", help="Seed of all randomness.")
    ] = "0",
    as_json: words.Json = False,
) -> None:
    r"""Finds the best machine of a space for a suite of workloads, with all their mappings.

    Machines move on the grids of a search space, within its budgets; what is found is priced by
    the exact model and stands beside the start machine with its best mappings. A folder holds the
    results and checkpoints: Ctrl-C, or a kill, loses little, and --resume goes on from there.

    Two more commands: `jaxcomet codesign show DIR` shows and draws what a folder holds, also while
    tasks are missing; `jaxcomet codesign spaces` lists search spaces and suites.

    \b
    Examples:
      jaxcomet codesign spaces
      jaxcomet codesign edge-9 --out found --seeds 32
      jaxcomet codesign edge-9 --out found --seeds 32 --resume
      jaxcomet codesign edge cloud --workloads llama-3-8b --workloads gpt-3-175b --out both
      jaxcomet codesign edge --out front --pareto 16 --budget area=400 --seeds 16
      jaxcomet codesign edge-9 --out steps --objective edp --ladder area=300,400,500
      jaxcomet codesign edge-small --out small --method local --time-limit 60 --across worst
      jaxcomet codesign show found --figure found.png
    """
    if out is None:
        raise InputError("--out: missing; expected a folder for the results, new or with --resume")
    objectives = _objectives(objective, pareto)
    budgets = _budgets(budget, ladder)
    asked: dict[str, Any] = {
        "across": words.choice("--across", across, _ACROSS),
        "method": words.choice("--method", method, _METHODS),
        "seeds": _number("--seeds", seeds),
        "steps": _number("--steps", steps),
        "chains": _number("--chains", chains),
        "evaluations": None if evaluations is None else _number("--evaluations", evaluations),
        "time_limit_s": None if time_limit is None else _seconds(time_limit),
        "derive_buffers": derive_buffers,
        "tiles": words.choice("--tiles", tiles, _TILES),
        "key": 0 if key.strip() == "0" else _number("--key", key),
    }
    from jaxcomet import optimize
    from jaxcomet.cli import codesign_report

    given = _suites(suites or ["three"])
    asked["strategies"] = _strategies(strategy, given)
    try:
        loaded = [optimize.load_space(name) for name in spaces]
        for space in loaded:
            _check_budgets(space, budgets)
        stopped = _search(loaded, given, objectives, budgets, asked, out, resume)
    except optimize.InfeasibleError as error:
        typer.echo(f"infeasible: {error}", err=True)
        raise typer.Exit(_INFEASIBLE) from None
    found = codesign_report.read_folder(out)
    if as_json:
        tables.print_json(found.as_dict())
    elif found.records or stopped == "complete":
        codesign_report.show(found)
    if stopped == "interrupted":
        typer.echo("interrupted; resume with --resume", err=True)
        raise typer.Exit(_INTERRUPTED)
    if found.infeasible:
        for name, message in found.infeasible.items():
            typer.echo(f"infeasible: {name}: {message}", err=True)
        raise typer.Exit(_INFEASIBLE)


def show(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder of a co-design.")],
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="NAME", help='One task only, e.g. "three on edge-9".'),
    ] = None,
    figure: words.FigureFile = None,
    as_json: words.Json = False,
) -> None:
    r"""Shows what a folder of co-designs holds, also while some of its tasks are missing.

    The figure has the Pareto front, how the search went, and the machine that is best for the first
    target beside the start.

    \b
    Examples:
      jaxcomet codesign show found
      jaxcomet codesign show found --figure found.png
      jaxcomet codesign show both --task "llama-3-8b on edge" --figure llama.pdf
      jaxcomet codesign show found --json > found.json
    """
    from jaxcomet.cli import codesign_report

    if figure is not None:
        words.figure_kind(figure)
        check_writable(figure)
    found = codesign_report.read_folder(folder)
    if task is not None:
        found = found.only(task)
    if figure is not None:
        from jaxcomet.cli.compare import write_figure

        write_figure(codesign_report.figure(found), figure)
    if as_json:
        tables.print_json(found.as_dict())
    else:
        codesign_report.show(found)
    if figure is not None:
        typer.echo(f"figure: {figure}", err=as_json)


def spaces(as_json: words.Json = False) -> None:
    r"""Lists the search spaces and the suites of workloads that come with the package.

    \b
    Examples:
      jaxcomet codesign spaces
      jaxcomet codesign spaces --json
    """
    from jaxcomet.cli import codesign_report

    listed = codesign_report.shipped()
    if as_json:
        tables.print_json(listed)
    else:
        codesign_report.show_shipped(listed)


# -- words -----------------------------------------------------------------------------------------


def _number(option: str, text: str) -> int:
    return int(words.whole_number(option, text))


def _seconds(text: str) -> float:
    return _positive("--time-limit", text, "seconds above 0")


def _positive(option: str, text: str, expected: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 < number < math.inf:
        raise InputError(f"{option}: got {text!r}; expected {expected}")
    return number


def _objectives(named: list[str] | None, pareto: str | None) -> list[Any]:
    """Objectives by name, then weightings; edp where there are none."""
    found: list[Any] = []
    for name in named or ():
        words.choice("--objective", name, _OBJECTIVES)
        if name in found:
            raise InputError(f"--objective {name}: got it twice; give it once")
        found.append(name)
    if pareto is not None:
        count = _number("--pareto", pareto)
        if count > _MOST_TARGETS:
            raise InputError(f"--pareto: got {count}; expected at most {_MOST_TARGETS}")
        from jaxcomet.optimize import pareto as weightings

        found += weightings(count)
    return found or ["edp"]


def _budgets(single: list[str] | None, ladder: str | None) -> list[dict[str, float]]:
    """Sets of limits: those of --budget, once for each step of the ladder."""
    form = "a number above 0"
    base = {
        name: _positive(f"--budget {name}", text, form)
        for name, text in words.pairs("--budget", single).items()
    }
    if ladder is None:
        return [base]
    ((name, text),) = words.pairs("--ladder", [ladder], "NAME=VALUE,VALUE,...").items()
    if name in base:
        raise InputError(f"--ladder {name}: got --budget {name} as well; leave one out")
    limits = [
        _positive(f"--ladder {name}", t.strip(), f"{form}, or several") for t in text.split(",")
    ]
    if len(set(limits)) != len(limits):
        raise InputError(f"--ladder {name}: got {text}; expected each value once")
    return [{**base, name: limit} for limit in limits]


def _check_budgets(space: Any, budgets: list[dict[str, float]]) -> None:
    """Refuses budgets that the space lacks."""
    known = [b.name for b in space.budgets]
    for name in budgets[0]:
        if name not in known:
            raise InputError(
                f"--budget {name}: {space.name} has no such budget; {near(name, known)}"
            )


def _suites(names: list[str]) -> dict[str, "WorkloadSuite"]:
    from jaxcomet.optimize.joint.suites import load_suite

    found: dict[str, WorkloadSuite] = {}
    for name in names:
        suite = load_suite(name)
        if suite.name in found:
            raise InputError(
                f"--workloads {name}: got a suite named {suite.name} before; expected each name "
                "once; leave one out or rename it in its file"
            )
        found[suite.name] = suite
    return found


def _strategies(
    given: list[str] | None, suites: dict[str, "WorkloadSuite"]
) -> dict[str, list[str]] | None:
    """The strategies that may be chosen, by operation; refuses what would mean nothing."""
    from jaxcomet import strategies

    there = {op.name for suite in suites.values() for op in suite.workloads.values()}
    found: dict[str, list[str]] = {}
    for word in given or ():
        ((operation, name),) = words.pairs("--strategy", [word], "OPERATION=NAME").items()
        if operation not in there:
            raise InputError(
                f"--strategy {operation}: no workload is of this operation; "
                f"{near(operation, sorted(there))}"
            )
        known = [s.name for s in strategies.available(operation)]
        if name not in known:
            raise InputError(
                f"--strategy {operation}: got {name!r}, no strategy of it; {near(name, known)}"
            )
        found.setdefault(operation, []).append(name)
    return found or None


# -- the search ------------------------------------------------------------------------------------


def _search(
    spaces: list[Any],
    suites: dict[str, "WorkloadSuite"],
    objectives: list[Any],
    budgets: list[dict[str, float]],
    asked: dict[str, Any],
    out: str,
    resume: bool,
) -> str:
    """Runs the sweep with its progress bar; says how it ended."""
    from jaxcomet import optimize

    tasks = len(suites) * len(spaces)
    with _no_interrupt_lost(), tables.stage_bar() as bar:
        shown = bar.add_task(f"{tasks} task{'s' * (tasks > 1)}: start machine", total=None, note="")
        watch = _Watch()

        def progress(at: "Progress") -> None:
            watch.see(at)
            bar.update(
                shown,
                description=f"task {at.number} of {at.tasks}, {at.task}: {at.run.phase}",
                total=1.0 if watch.share else None,
                completed=watch.share,
                note=watch.note,
            )

        try:
            return optimize.sweep(
                {name: suite.workloads for name, suite in suites.items()},
                spaces,
                objectives=objectives,
                budgets=budgets,
                weights={name: suite.weights for name, suite in suites.items()},
                **asked,
                out=out,
                resume=resume,
                progress=progress,
            ).stopped
        except KeyboardInterrupt:
            return "interrupted"


@contextlib.contextmanager
def _no_interrupt_lost() -> Iterator[None]:
    """Sends a Ctrl-C again that arrived where nothing can be raised, e.g. in a hook of the GC.

    JAX has such a hook, and Python only reports what is raised in it.
    """
    before = sys.unraisablehook

    def report(lost: Any) -> None:
        if lost.exc_type is KeyboardInterrupt:
            threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            before(lost)

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = before


class _Watch:
    """How a task comes along: speed, the best so far, and the time that is left."""

    def __init__(self) -> None:
        self._run: object = None
        self.share, self.note = 0.0, ""

    def see(self, at: "Progress") -> None:
        """Reads where the run stands."""
        run, now = at.run, time.monotonic()
        if run is not self._run:
            self._run, self._phase = run, ""
            self._start = _start_total(run)
        if run.phase != self._phase:
            self._phase, self._began = run.phase, now
            self._share_before, self._evaluated = run.share, run.evaluated
        best = float(run.incumbents.totals[0])
        if not math.isfinite(best):
            parts = ["nothing fits yet"]
        elif math.isnan(self._start):
            parts = ["fits, the start does not"]
        else:
            parts = [f"best {math.exp(self._start - best):.2f}x"]
        if now > self._began:
            speed = (run.evaluated - self._evaluated) / (now - self._began)
            parts.append(f"{speed:,.0f} evaluations/s")
        self.share = self._done(run, now)
        left = self._left(run, now)
        if left is not None:
            parts.append(f"{left // 60:.0f}:{left % 60:02.0f} left")
        self.note = ", ".join(parts)

    def _done(self, run: Any, now: float) -> float:
        """How much is done: of the descent or of a limit; 0 where nothing says so."""
        effort = run.effort
        shares = [run.share if run.share < 1.0 else 0.0]
        if effort.evaluations is not None:
            shares.append(run.evaluated / effort.evaluations)
        if effort.seconds is not None:
            shares.append((now - run.began_s) / effort.seconds)
        return min(max(shares), 1.0)

    def _left(self, run: Any, now: float) -> int | None:
        """Seconds left in this phase, or to the limit of time; None: unknown."""
        found = []
        if run.effort.seconds is not None:
            found.append(max(0.0, run.effort.seconds - (now - run.began_s)))
        done = run.share - self._share_before
        if done > 0.0 and run.share < 1.0:
            found.append((now - self._began) * (1.0 - run.share) / done)
        return int(min(found)) if found else None


def _start_total(run: Any) -> float:
    """Log of what the first target minimises, of the start; nan where it does not fit."""
    if not bool(run.start.scores.fits.all()):
        return math.nan
    return float(run.joint.total(run.start.scores.take([0]), run.targets.take([0]))[0])
