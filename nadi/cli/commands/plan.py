"""`nadi plan`: which parallel plan trains a model soonest."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nadi.cli.options import SBATCH_HELP, named_path
from nadi.configuration.bounds import MAX_GPUS, MAX_WORKERS
from nadi.terminal.printing import say

if TYPE_CHECKING:
    from collections.abc import Callable

Answers = dict[str, dict[str, Any]]
"""Documents of `nadi plan` by question."""
TABLE, PAGE = "plan.json", "plan.html"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(plan)


def plan(
    model: str = typer.Option("", metavar="NAME", help="A model of the library, its TOML file, or a config.json."),
    cluster: str = typer.Option(
        "", metavar="NAME", help="As `nadi run --cluster`: a name, a file, or either with parameters."
    ),
    gpus: int = typer.Option(0, min=0, max=MAX_GPUS, metavar="N", show_default=False, help="GPUs of each plan."),
    base: str = typer.Option(
        "",
        "--plan",
        metavar="PLAN",
        help="Constraints on every plan, as tp8,gb1536,recompute=full; the rest is searched.",
    ),
    framework: str = typer.Option("megatron", help="megatron, deepspeed or fsdp."),
    gpu: str = typer.Option("", metavar="NAME", help="In place of the cluster's; `nadi workload gpus` lists them."),
    reserve: str = typer.Option("5%", metavar="SIZE", help="Memory of each GPU that plans leave free, as 4GiB or 5%."),
    top: int = typer.Option(10, min=1, help="Plans that are shown."),
    confirm: int = typer.Option(3, min=0, help="Plans, the best ones, whose communication is sent by packets."),
    sweep: str = typer.Option(
        "", metavar="KEY=V1,V2", help="Plan for each value of gpus, gpu, or a parameter of the fabric, as rate."
    ),
    tokens: float = typer.Option(
        0.0, min=0.0, max=1e18, metavar="N", show_default=False, help="Days, joules and dollars of so many, as 15e12."
    ),
    energy_table: Path | None = typer.Option(
        None, metavar="FILE", parser=named_path, help="Powers and prices in TOML, over those of `nadi energy`."
    ),
    shard: str = typer.Option("", metavar="I/N", help="Only each N-th plan, from the I-th on; I from 0."),
    merge: list[Path] = typer.Option([], metavar="DIR", help="Results of shards: rank these in place of planning."),
    slurm: int = typer.Option(
        0, min=0, max=10_000, metavar="N", help="Print a batch script of an array of N shards, run nothing."
    ),
    sbatch: list[str] = typer.Option([], "--sbatch", metavar="OPTION", help=SBATCH_HELP),
    out: Path | None = typer.Option(
        None, "-o", "--out", metavar="DIR", parser=named_path, help="Folder for plan.json and a page."
    ),
    workers: int = typer.Option(1, min=1, max=MAX_WORKERS, metavar="N", help="Processes."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Rank all valid plans that fit in memory by the time of their step, tell what each costs, confirm the best."""
    from dataclasses import replace

    from nadi.errors import ConfigError
    from nadi.launching.progress import progress
    from nadi.launching.shards import shard_of
    from nadi.studies.planner.plan_file import read_answers
    from nadi.studies.planner.planning import document, merged, planned
    from nadi.studies.planner.reserve import MemoryReserve
    from nadi.studies.planner.wishes import swept, wish_of

    if merge:
        _answer(lambda: {"merged": merged(read_answers(merge, TABLE))}, top, out, as_json=as_json)
        return
    for option, given in (("--model", model), ("--cluster", cluster), ("--gpus", gpus)):
        if not given:
            raise ConfigError(f"{option} is missing; expected --model NAME --cluster NAME --gpus N, or --merge DIR")
    wish = replace(
        wish_of(model, cluster, gpus, base, framework, gpu),
        reserve=MemoryReserve.parse(reserve),
        confirm=confirm,
        workers=workers,
        shard=shard_of(shard) if shard else (0, 1),
        energy_table=energy_table,
        tokens=tokens,
    )
    wishes = swept(wish, sweep)
    if slurm:
        if out is None:
            raise ConfigError("--slurm without --out; expected a folder for the results of the shards")
        options = {
            "--model": model,
            "--cluster": cluster,
            "--gpus": gpus,
            "--plan": base,
            "--framework": framework,
            "--gpu": gpu,
            "--reserve": reserve,
            "--sweep": sweep,
            "--energy-table": energy_table,
            "--tokens": tokens,
        }
        _print_script(options, slurm, out, sbatch)
        return

    def planned_answers() -> Answers:
        with progress(quiet=quiet) as shown:
            return {name: document(planned(one, shown)) for name, one in wishes.items()}

    _answer(planned_answers, top, out, as_json=as_json)


def _print_script(options: dict[str, object], shards: int, out: Path, sbatch: list[str]) -> None:
    """A batch script of shards, which send nothing by packets: what is best is known after --merge."""
    from nadi.launching.shards import array_script

    given = [word for option, value in options.items() if value for word in (option, str(value))]
    merging = ["plan", *(word for number in range(shards) for word in ("--merge", str(out / str(number))))]
    words = ["plan", "--confirm", "0", *given]
    typer.echo(array_script(words, shards, out, merging, own_folders=True, options=sbatch), nl=False)


def _answer(answers_of: "Callable[[], Answers]", top: int, out: Path | None, *, as_json: bool) -> None:
    """Find the answers, show them, and write them where a folder is named, which is tried before."""
    from nadi.reports.result_files.staging import staged

    with staged(out, (TABLE, PAGE), key="answers") if out else nullcontext() as staging:
        answers = answers_of()
        if staging:
            (staging / TABLE).write_text(json.dumps({"answers": answers}, indent=2), encoding="utf-8")
            without = _write_page(staging / PAGE, answers)
    _show(answers, top, as_json=as_json)
    if out:
        say(f"results: {out}{without}", err=as_json)


def _write_page(path: Path, answers: Answers) -> str:
    """Write the page, or say why there is none."""
    from nadi.reports.pages import has_plotly
    from nadi.reports.pages.page import write_page
    from nadi.studies.planner.page import page

    if not has_plotly():
        return f", without {path.name}: plotly is not installed; pip install 'nadi[plot]'"
    write_page(path, page(answers))
    return ""


def _show(answers: Answers, top: int, *, as_json: bool) -> None:
    from nadi.studies.planner.report import plan_table
    from nadi.terminal.tables import console

    if as_json:
        typer.echo(json.dumps({"answers": answers}, indent=2))
        return
    for name, found in answers.items():
        title = f"{name}: {found['model']}" if len(answers) > 1 else found["model"]
        console().print(plan_table({**found, "model": title}, top))
