"""`nadi plan`: find the parallel plan that trains a model fastest."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.options import ArraySize, AsJson, FiguresFolder, Quiet, Sbatch, cluster_names, model_names, named_path
from nadi.cli.output import check_outputs, print_json, print_table, write_charts
from nadi.configuration import MAX_GPUS, MAX_WORKERS
from nadi.errors import ConfigError
from nadi.inputs.errors import NadiError
from nadi.terminal import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

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


def plan(
    model: str = typer.Option("", metavar="NAME", help=_MODEL, autocompletion=model_names),
    cluster: str = typer.Option("", metavar="NAME", help=_CLUSTER, autocompletion=cluster_names),
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
    energy_table: Path | None = typer.Option(None, metavar="FILE", parser=named_path, help=_ENERGY),
    shard: str = typer.Option("", metavar="I/N", help="Evaluate only every N-th plan, starting at plan I; I from 0."),
    merge: list[Path] = typer.Option([], metavar="DIR", help=_MERGE),
    slurm: ArraySize = 0,
    sbatch: Sbatch = [],
    out: Path | None = typer.Option(None, "-o", "--out", metavar="DIR", parser=named_path, help=_OUT),
    figures: FiguresFolder = None,
    workers: int = typer.Option(1, min=1, max=MAX_WORKERS, metavar="N", help="Number of processes."),
    as_json: AsJson = False,
    quiet: Quiet = False,
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
        options: dict[str, object] = {
            "--model": model,
            "--cluster": cluster,
            "--gpus": gpus,
            "--plan": base,
            "--framework": framework,
        }
        options |= {"--gpu": gpu, "--reserve": reserve, "--sweep": sweep, "--energy-table": energy_table}
        options |= {"--tokens": tokens, "--top": top}
        options_given = [word for option, value in options.items() if value for word in (option, str(value))]
        merging = ["plan", *(word for number in range(slurm) for word in ("--merge", str(out / str(number))))]
        words = ["plan", "--confirm", "0", *options_given]  # only --merge finds the best plans to confirm
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
    from nadi.launching.ending import INTERRUPTED
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
    from nadi.launching.ending import unwound
    from nadi.reports.pages.page import write_page
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
