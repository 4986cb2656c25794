"""Studies of many runs: `nadi plan` searches plans, `nadi sweep` varies keys, `nadi collective` varies sizes."""

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli import options
from nadi.cli.output import check_outputs, print_document, print_json, print_table, write_charts
from nadi.configuration import MAX_GPUS, MAX_SEED, MAX_WORKERS
from nadi.errors import ConfigError
from nadi.inputs.errors import NadiError
from nadi.launching.ending import INTERRUPTED, unwound
from nadi.terminal import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from rich.console import Group

    from nadi.studies.collectives import CollectiveSweep
    from nadi.studies.planner import PlanRequest

Answers = dict[str, dict[str, Any]]  # Documents of `nadi plan` by question
TABLE, PAGE = "plan.json", "plan.html"
_MODEL = "Model of the library, its TOML file, or a config.json."
_CLUSTER = "Cluster, as in `nadi run --cluster`: name or file, optionally with parameters."
_BASE = "Constraints on every plan, such as tp8,gb1536,recompute=full; other parameters are searched."
_GPU = "GPU that replaces the cluster's; `nadi workload gpus` lists them."
_RESERVE = "Memory per GPU that plans must leave free, such as 4GiB or 5%."
_CONFIRM_BY = "Simulation of the best plans: packet (default; largest communications) or flow (whole step; ranks them)."
_SWEEP = "Plan for each value of gpus, gpu, or a parameter of the fabric such as rate."
_TOP = "Number of best plans to find and show; plans that cannot be among them are skipped."
_TOKENS = "Training tokens whose days, joules and dollars are printed, such as 15e12."
_ENERGY = "TOML file of powers and prices that override those of `nadi energy`."
_MERGE = "Folder with the results of a shard, to rank instead of planning. Repeatable."
_OUT = "Folder for plan.json and a page."

Gpus = Annotated[
    int, typer.Option(min=0, max=MAX_GPUS, metavar="N", show_default=False, help="Number of GPUs per plan.")
]


def register(app: typer.Typer) -> None:
    """Add the commands.

    Args:
        app: The application of typer.
    """
    app.command()(plan)
    app.command()(sweep)
    app.command()(collective)


def plan(
    model: str = typer.Option("", metavar="NAME", help=_MODEL, autocompletion=options.model_names),
    cluster: str = typer.Option("", metavar="NAME", help=_CLUSTER, autocompletion=options.cluster_names),
    gpus: Gpus = 0,
    base: str = typer.Option("", "--plan", metavar="PLAN", help=_BASE),
    framework: str = typer.Option("megatron", help="Framework: megatron, deepspeed or fsdp."),
    gpu: str = typer.Option("", metavar="NAME", help=_GPU),
    reserve: str = typer.Option("5%", metavar="SIZE", help=_RESERVE),
    top: int = typer.Option(10, min=1, help=_TOP),
    confirm: int = typer.Option(3, min=0, help="Number of best plans to simulate with contention."),
    confirm_by: str = typer.Option("", metavar="FIDELITY", help=_CONFIRM_BY),
    sweep: str = typer.Option("", metavar="KEY=V1,V2", help=_SWEEP),
    tokens: float = typer.Option(0.0, min=0.0, max=1e18, metavar="N", show_default=False, help=_TOKENS),
    energy_table: Path | None = typer.Option(None, metavar="FILE", parser=options.named_path, help=_ENERGY),
    shard: str = typer.Option("", metavar="I/N", help="Evaluate only every N-th plan, starting at plan I; I from 0."),
    merge: list[Path] = typer.Option([], metavar="DIR", help=_MERGE),
    slurm: options.ArraySize = 0,
    sbatch: options.Sbatch = [],
    out: Path | None = typer.Option(None, "-o", "--out", metavar="DIR", parser=options.named_path, help=_OUT),
    figures: options.FiguresFolder = None,
    workers: int = typer.Option(1, min=1, max=MAX_WORKERS, metavar="N", help="Number of processes."),
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the fastest plans that fit in memory, print their costs, and confirm them with contention."""
    from dataclasses import replace

    from nadi.launching.slurm import array_script, shard_of
    from nadi.pdes.fidelity import FLUID, REFERENCE
    from nadi.studies.planner import MemoryReserve, merge_shards, plan_request, read_answers, sweep_requests

    check_outputs(None, figures)
    if merge:
        _answer(lambda _: [("merged", merge_shards(read_answers(merge, TABLE)))], top, out, figures, as_json=as_json)
        return
    for option, value in (("--model", model), ("--cluster", cluster), ("--gpus", gpus)):
        if not value:
            raise ConfigError(f"{option} is missing; expected --model NAME --cluster NAME --gpus N, or --merge DIR")
    request = replace(
        plan_request(model, cluster, gpus, base, framework, gpu),
        reserve=MemoryReserve.parse(reserve),
        top=top,
        confirm=confirm,
        confirm_by=confirm_by or REFERENCE,
        workers=workers,
        shard=shard_of(shard) if shard else (0, 1),
        energy_table=energy_table,
        tokens=tokens,
    )
    if confirm_by not in {"", REFERENCE, FLUID}:
        raise ConfigError(f"--confirm-by {confirm_by}: expected {REFERENCE} or {FLUID}")
    requests = sweep_requests(request, sweep)
    if slurm:
        if out is None:
            raise ConfigError("--slurm without --out; expected a folder for the results of the shards")
        if figures:
            raise ConfigError("--figures: found with --slurm; expected it with --merge, once the shards have ended")
        given: dict[str, object] = {
            "--model": model,
            "--cluster": cluster,
            "--gpus": gpus,
            "--plan": base,
            "--framework": framework,
        }
        given |= {"--gpu": gpu, "--reserve": reserve, "--sweep": sweep, "--energy-table": energy_table}
        given |= {"--tokens": tokens, "--top": top}
        given_words = [word for option, value in given.items() if value for word in (option, str(value))]
        merging = ["plan", *(word for number in range(slurm) for word in ("--merge", str(out / str(number))))]
        words = ["plan", "--confirm", "0", *given_words]  # only --merge finds the best plans to confirm
        typer.echo(array_script(words, slurm, out, merging, own_folders=True, more_options=sbatch), nl=False)
        return

    _answer(lambda folder: _planned(requests, folder, quiet=quiet), top, out, figures, as_json=as_json)


class SearchNotFinishedError(NadiError, RuntimeError):
    """A signal stopped the search of plans; results have what was found until then."""

    def __init__(self, message: str, exit_code: int) -> None:
        """Keep the message, one line, and the exit code of the signal."""
        super().__init__(message)
        self.exit_code = exit_code


def _planned(requests: "Mapping[str, PlanRequest]", folder: Path | None, *, quiet: bool) -> "Iterator[tuple[str, Any]]":
    """Yield the name and the document of each request; end with SearchNotFinishedError if a signal stops a search.

    An unfinished search is kept in the folder of results, if there is one, and continues there.
    """
    from nadi.launching.progress import progress
    from nadi.studies.planner import ProgressFile, answer_document, rank_plans

    file = ProgressFile(folder)
    for name, request in requests.items():
        with progress(quiet=quiet) as shown:
            ranking = rank_plans(request, shown, file)
        yield name, answer_document(ranking)
        if ranking.stopped is not None:
            fix = f"the same command continues from {folder}" if folder else "with -o DIR, a second run would continue"
            unfinished = f"{ranking.left} plans are left" if ranking.left else "the best plans are not all confirmed"
            text = f"the search was not finished: {unfinished}; {fix}"
            raise SearchNotFinishedError(text, getattr(ranking.stopped, "exit_code", INTERRUPTED))
    file.remove()


def _answer(
    answers_in: "Callable[[Path | None], Iterable[tuple[str, Any]]]",
    num_plans: int,
    out: Path | None,
    figures: Path | None,
    *,
    as_json: bool,
) -> None:
    """Compute the answers, show them, and write them into a folder, which is checked first, and their charts."""
    from nadi.reports.pages import write_page
    from nadi.reports.staging import staged
    from nadi.studies.planner import plan_page, plan_table

    answers: Answers = {}
    unfinished: SearchNotFinishedError | None = None
    with unwound(), staged(out, (TABLE, PAGE), key="answers") if out else nullcontext() as staging:
        try:
            for name, answer in answers_in(out):
                answers[name] = answer
        except SearchNotFinishedError as error:
            unfinished = error  # raised at the end, once the answers so far are written and shown
        if staging:
            (staging / TABLE).write_text(json.dumps({"answers": answers}, indent=2), encoding="utf-8")
            write_page(staging / PAGE, plan_page(answers))
    if as_json:
        print_json({"answers": answers})
    else:
        for name, answer in answers.items():
            title = f"{name}: {answer['model']}" if len(answers) > 1 else answer["model"]
            print_table(plan_table({**answer, "model": title}, num_plans))
    if out:
        say(f"results: {out}", err=as_json)
    if figures:
        write_charts(figures, plan_page(answers), err=as_json)
    if unfinished:
        raise unfinished


_FILE = "Sweep file with keys and their values; docs/how-to/sweep.md."


def sweep(
    file: Path = typer.Argument(metavar="SWEEP.toml", help=_FILE),
    out: Path = typer.Option(
        ..., "-o", "--out", metavar="DIR", parser=options.named_path, help="Folder for all results."
    ),
    jobs: int = typer.Option(1, min=1, max=1024, metavar="N", help="Number of concurrent runs on this machine."),
    shard: str = typer.Option("", metavar="I/N", help="Run only every N-th point, starting at point I; I from 0."),
    merge: bool = typer.Option(False, "--merge", help="Only merge the results of shards into one table."),
    slurm: options.ArraySize = 0,
    sbatch: options.Sbatch = [],
    figures: options.FiguresFolder = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a grid, a list or a Latin hypercube of settings; resume an earlier sweep in the same folder."""
    from nadi.api.running import SweepRequest, run_sweep
    from nadi.insight.metrics import ranking_metric
    from nadi.launching.progress import progress
    from nadi.studies.sweeps import MAX_PRINTED, points_table, read_sweep, settings_of, sweep_script

    if slurm:
        # refuses a wrong file now, not in each task
        read_sweep(file)
        typer.echo(sweep_script(file, out, slurm, sbatch, force=force), nl=False)
        return
    check_outputs(None, figures)
    with unwound():
        answer = run_sweep(
            SweepRequest(file, out, jobs, shard, merge, figures),
            lambda: progress(quiet=quiet),
            force=force,
        )
    if answer.table is not None:
        if as_json:
            print_json(answer.table.to_pylist())
        else:
            figure = ranking_metric(answer.table, answer.definition.rank)
            print_table(points_table(settings_of(answer.table, figure), figure, MAX_PRINTED))
        say(f"results: {out}", err=as_json)
        if figures:
            say(f"figures: {figures}, as SVG, PDF and CSV", err=as_json)
    if failed := answer.failed():
        first = failed[0]
        raise ConfigError(f"{len(failed)} of {len(answer.outcomes)} points failed; point {first.point}: {first.error}")


_KINDS = "all-reduce, all-gather, reduce-scatter, all-to-all, all-to-all-v, ..."
_SIZES = "Sizes of the whole buffer in bytes: 8:8GiB:x2, 1MiB:8MiB:+1MiB, or 1KiB,1MiB."
_MATRIX = "all-to-all-v: matrix of bytes from each NPU (row) to each NPU, CSV or .npy; replaces --sizes."
_SKEW = "all-to-all-v: distribution of the --sizes of each NPU over the receivers."
_ALGORITHMS = "Algorithms, such as ring,direct, or all for all possible ones. Default: the kind's. Repeatable."
_SET = "Value of the run file's [network] or [system], or topology.params, such as network.mtu=1KiB."
_FIDELITY = "Network model: `nadi net fidelities` lists them. With closed-form, nothing is simulated."
_SWEEP_OUT = "Folder for a Parquet table and a page."

Sizes = Annotated[str, typer.Option(help=_SIZES)]
Algorithms = Annotated[list[str], typer.Option(metavar="NAMES", help=_ALGORITHMS, autocompletion=options.algorithms)]
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of all hashed choices.")]


def collective(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=_KINDS, autocompletion=options.kinds)],
    topology: options.Topology,
    sizes: Sizes = "1MiB",
    matrix: Path | None = typer.Option(None, metavar="FILE", parser=options.named_path, help=_MATRIX),
    skew: str = typer.Option("", metavar="zipf:EXPONENT", help=_SKEW),
    algorithm: Algorithms = [],
    fidelity: str = typer.Option("", metavar="NAME", show_default=False, help=_FIDELITY),
    out: Path | None = typer.Option(None, "-o", "--out", metavar="DIR", parser=options.named_path, help=_SWEEP_OUT),
    figures: options.FiguresFolder = None,
    overrides: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help=_SET),
    seed: Seed = 1,
    workers: options.WorkerCount = 1,
    backend: options.BackendName = "threads",
    force: options.Force = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Time a collective of all NPUs on an idle fabric; print algorithm and bus bandwidth and the closed form."""
    from nadi.launching.ranks import connected_ranks

    ranks = connected_ranks(os.environ)
    from nadi.api.running import CollectiveRequest, time_collective
    from nadi.launching.progress import progress
    from nadi.launching.ranks import together
    from nadi.launching.workers import Workers
    from nadi.studies.collectives import sweep_page

    with together(ranks):
        check_outputs(None, figures)
        own = Workers(ranks, options.backend_of(backend, ranks), workers)
    by_fidelity = [f'network.fidelity="{fidelity}"'] if fidelity else []
    sweep = time_collective(
        CollectiveRequest(
            kind, topology, sizes, matrix, skew, algorithm, [*overrides, *by_fidelity], seed=seed, out=out
        ),
        own,
        lambda: progress(quiet=quiet or ranks.rank != 0),
        force=force,
    )
    if ranks.rank:
        return
    print_document(sweep.document() if as_json else sweep, _tables, as_json=as_json)
    if out:
        say(f"results: {out}", err=as_json)
    if figures:
        write_charts(figures, sweep_page(sweep), err=as_json)


def _tables(sweep: "CollectiveSweep") -> "Group":
    """Return the table of all rows, and with several algorithms also the fastest by size."""
    from rich.console import Group

    from nadi.studies.collectives import sweep_table, winners_table

    has_several = len({row.algorithm for row in sweep.rows}) > 1
    return Group(sweep_table(sweep), *([winners_table(sweep)] if has_several else []))
