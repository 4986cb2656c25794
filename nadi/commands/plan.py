"""`nadi plan`: which parallel plan trains a model soonest."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nadi.bounds import MOST_GPUS, MOST_WORKERS
from nadi.options import named_path
from nadi.terminal.printing import say

if TYPE_CHECKING:
    from nadi.planner.planning import Wish

TABLE, PAGE = "plan.json", "plan.html"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(plan)


def plan(
    model: str = typer.Option("", metavar="NAME", help="A model of the library, its TOML file, or a config.json."),
    cluster: str = typer.Option("", metavar="NAME", help="`nadi topology clusters` lists them."),
    gpus: int = typer.Option(0, min=0, max=MOST_GPUS, metavar="N", show_default=False, help="GPUs of each plan."),
    base: str = typer.Option(
        "", "--plan", metavar="PLAN", help="What all plans have in common, as gb1536,seq4096,attention=unfused."
    ),
    framework: str = typer.Option("megatron", help="megatron, deepspeed or fsdp."),
    gpu: str = typer.Option("", metavar="NAME", help="In place of the cluster's; `nadi workload gpus` lists them."),
    reserve: str = typer.Option("0B", metavar="SIZE", help="Memory of each GPU that plans leave free, as 4GiB or 5%."),
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
    slurm: int = typer.Option(0, min=0, metavar="N", help="Print a batch script of an array of N shards, run nothing."),
    out: Path | None = typer.Option(
        None, "-o", "--out", metavar="DIR", parser=named_path, help="Folder for plan.json and a page."
    ),
    workers: int = typer.Option(1, min=1, max=MOST_WORKERS, metavar="N", help="Processes."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Rank all valid plans that fit in memory by the time of their step, tell what each costs, confirm the best."""
    from dataclasses import replace

    from nadi.errors import ConfigError
    from nadi.launching.shards import shard_of
    from nadi.planner.plan_file import read_answers
    from nadi.planner.planning import merged
    from nadi.planner.reserve import Reserve
    from nadi.planner.wishes import swept, wish_of

    if merge:
        answers = {"merged": merged(read_answers(merge, TABLE))}
        _show(answers, top, as_json=as_json)
        return
    for option, given in (("--model", model), ("--cluster", cluster), ("--gpus", gpus)):
        if not given:
            raise ConfigError(f"{option} is missing; expected --model NAME --cluster NAME --gpus N, or --merge DIR")
    wish = replace(
        wish_of(model, cluster, gpus, base, framework, gpu),
        reserve=Reserve.parse(reserve),
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
        _print_script(options, slurm, out)
        return
    _plan_all(wishes, top, out, as_json=as_json, quiet=quiet)


def _print_script(options: dict[str, object], shards: int, out: Path) -> None:
    """A batch script of shards, which send nothing by packets: what is best is known after --merge."""
    from nadi.launching.shards import array_script

    given = [word for option, value in options.items() if value for word in (option, str(value))]
    typer.echo(array_script(["plan", "--confirm", "0", *given], shards, out, own_folders=True), nl=False)


def _plan_all(wishes: "dict[str, Wish]", top: int, out: Path | None, *, as_json: bool, quiet: bool) -> None:
    """Answer all questions, show the answers, and write them where a folder is named."""
    from nadi.launching.progress import progress
    from nadi.planner.planning import document, planned
    from nadi.results.staging import staged

    with staged(out, (TABLE, PAGE)) if out else nullcontext() as staging:
        with progress(quiet=quiet) as shown:
            answers = {name: document(planned(one, shown)) for name, one in wishes.items()}
        if staging:
            (staging / TABLE).write_text(json.dumps({"answers": answers}, indent=2), encoding="utf-8")
            without = _write_page(staging / PAGE, answers)
    _show(answers, top, as_json=as_json)
    if out:
        say(f"results: {out}{without}", err=as_json)


def _write_page(path: Path, answers: dict[str, dict[str, Any]]) -> str:
    """Write the page, or say why there is none."""
    from nadi.pages import has_plotly
    from nadi.pages.page import write_page
    from nadi.planner.page import page

    if not has_plotly():
        return f", without {path.name}: plotly is not installed; pip install 'nadi[plot]'"
    write_page(path, page(answers))
    return ""


def _show(answers: dict[str, dict[str, Any]], top: int, *, as_json: bool) -> None:
    from nadi.planner.report import plan_table
    from nadi.terminal.tables import console

    if as_json:
        typer.echo(json.dumps({"answers": answers}, indent=2))
        return
    for name, found in answers.items():
        title = f"{name}: {found['model']}" if len(answers) > 1 else found["model"]
        console().print(plan_table({**found, "model": title}, top))
