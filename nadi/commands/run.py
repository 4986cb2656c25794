"""`nadi run`: simulate what a run file says."""

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nadi.bounds import MOST_WORKERS
from nadi.options import FORCE_HELP, named_path

if TYPE_CHECKING:
    from nadi.config import RunConfig
    from nadi.launching.gather import Ranks

WORKERS_HELP = "Threads or processes of this machine; under mpiexec, threads of each rank."
BACKEND_HELP = "What the workers are: threads or processes."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(run)


def run(
    file: Path | None = typer.Argument(
        None, metavar="[RUN.toml]", show_default=False, help="The run file; docs/run-file.md lists its keys."
    ),
    model: str | None = typer.Option(
        None,
        "--model",
        metavar="NAME",
        show_default=False,
        help="Train this model, by name or file: `nadi workload models`.",
    ),
    plan: str | None = typer.Option(
        None, "--plan", metavar="PLAN", show_default=False, help="In this manner, as tp8,pp4,dp32."
    ),
    framework: str | None = typer.Option(
        None,
        "--framework",
        metavar="NAME",
        show_default=False,
        help="As megatron (without this), deepspeed or fsdp trains it, or inference serves it.",
    ),
    cluster: str | None = typer.Option(
        None, "--cluster", metavar="NAME", show_default=False, help="On this cluster: `nadi topology clusters`."
    ),
    gpus: int | None = typer.Option(
        None,
        "--gpus",
        min=1,
        metavar="N",
        show_default=False,
        help="Of which so many GPUs; without, those of the plan.",
    ),
    fidelity: str | None = typer.Option(
        None, "--fidelity", metavar="NAME", show_default=False, help="How the network is modelled: docs/fidelity.md."
    ),
    out: Path | None = typer.Option(
        None, "--out", metavar="DIR", parser=named_path, help="Folder for summary.json and the tables."
    ),
    overrides: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Replace a value of the run file, as network.window=1MiB. Repeatable."
    ),
    workers: int = typer.Option(
        0, "--workers", min=0, max=MOST_WORKERS, metavar="N", show_default=False, help=WORKERS_HELP
    ),
    backend: str = typer.Option("", "--backend", metavar="NAME", show_default=False, help=BACKEND_HELP),
    weights: str = typer.Option(
        "",
        "--weights",
        metavar="WHAT",
        show_default=False,
        help="Divide by traces, fabric, or an earlier run's folder.",
    ),
    force: bool = typer.Option(False, "--force", help=FORCE_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON in place of the report."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Simulate a run file, or a step of a model on a cluster, and report where the time went."""
    from nadi.launching.launcher import connected_ranks
    from nadi.launching.world import together

    ranks = connected_ranks(os.environ)
    from nadi.config import WEIGHT_WORDS
    from nadi.errors import ConfigError
    from nadi.run_file import load_config

    named = {
        "workload.model": model,
        "workload.plan": plan,
        "workload.framework": framework,
        "topology.cluster": cluster,
        "topology.gpus": gpus,
        "network.fidelity": fidelity,
    }
    given = _said(named) + [f"engine.workers={workers}"] * bool(workers) + [f"engine.backend={backend}"] * bool(backend)
    if weights:
        given.append(f"engine.weights={weights if weights in WEIGHT_WORDS else Path(weights).absolute()}")
    with together(ranks):
        if file is None and not model and not overrides:
            raise ConfigError(
                "found neither a run file nor --model; expected RUN.toml, or --model NAME --plan PLAN --cluster NAME"
            )
        config = load_config(file, [*overrides, *given])
    _simulated(ranks, config, out or config.output.dir, force=force, as_json=as_json, quiet=quiet)


def _simulated(
    ranks: "Ranks", config: "RunConfig", folder: Path | None, *, force: bool, as_json: bool, quiet: bool
) -> None:
    """Simulate what is settled; write and print what came out."""
    from nadi.analysis.findings import merge, part
    from nadi.launching.progress import progress
    from nadi.launching.world import together
    from nadi.reports.run import print_report
    from nadi.results.run_folder import RUN_FILES, summary, write_results
    from nadi.results.staging import staged
    from nadi.simulate import simulate
    from nadi.terminal.printing import say
    from nadi.wiring.from_model import remarks

    is_first = ranks.rank == 0
    for remark in remarks(config) if is_first else ():
        say(f"nadi: {remark}", err=True)
    with staged(folder, RUN_FILES, ranks) if folder else nullcontext() as staging:
        with progress(quiet=quiet or not is_first) as shown:
            simulation = simulate(config, shown, ranks, force=force, keep_flows=folder is not None)
        with together(ranks):
            parts = ranks.gather(part(simulation, ranks.exchange))
            findings = merge(simulation, parts) if parts is not None else None
            if folder:
                write_results(simulation, findings, staging, ranks)
            peaks = ranks.gather(simulation.peak_rss_bytes())
    if findings is None:
        return
    if as_json:
        typer.echo(json.dumps(summary(simulation, peaks, findings), indent=2))
        say(f"results: {folder}" if folder else "results are not kept: no --out DIR", err=True)
    else:
        print_report(simulation, findings, folder)


def _said(named: dict[str, str | int | None]) -> list[str]:
    """What options say, as --set does; a text stands in quotes, so that it is one whatever it looks like."""
    return [f"{key}={json.dumps(value)}" for key, value in named.items() if value is not None]
