"""`nadi run`: simulate a run file."""

import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.options import FORCE_HELP, named_path
from nadi.configuration.bounds import MAX_WORKERS

if TYPE_CHECKING:
    from nadi.configuration.sections import RunConfig
    from nadi.launching.gather import RankGather

WORKERS_HELP = "Number of threads or processes on this machine; under mpiexec, threads per rank."
BACKEND_HELP = "Kind of workers: threads or processes."
_MODEL = "Model to train, by name or file: `nadi workload models`."
_FRAMEWORK = "Framework: megatron (default), deepspeed or fsdp for training, or inference for serving."
_CLUSTER = "Name in `nadi topology clusters` or TOML file, optionally with parameters: selene:rate=100Gbps."
_GPUS = "Number of GPUs of the cluster. Default: those of the plan."
_FIDELITY = "Network model: docs/explanation/fidelity.md."
_SET = "Replace a value of the run file, such as network.window=1MiB. Repeatable."
_WEIGHTS = "Source of the weights for dividing the fabric: traces, fabric, or an earlier run's folder."

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RUN.toml]", show_default=False, help="Run file; docs/reference/run-file.md lists its keys."
    ),
]
Model = Annotated[str | None, typer.Option("--model", metavar="NAME", show_default=False, help=_MODEL)]
Plan = Annotated[
    str | None, typer.Option("--plan", metavar="PLAN", show_default=False, help="Parallel plan, such as tp8,pp4,dp32.")
]
Framework = Annotated[str | None, typer.Option("--framework", metavar="NAME", show_default=False, help=_FRAMEWORK)]
Cluster = Annotated[str | None, typer.Option("--cluster", metavar="NAME", show_default=False, help=_CLUSTER)]
Gpus = Annotated[int | None, typer.Option("--gpus", min=1, metavar="N", show_default=False, help=_GPUS)]
Fidelity = Annotated[str | None, typer.Option("--fidelity", metavar="NAME", show_default=False, help=_FIDELITY)]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", parser=named_path, help="Folder for summary.json and the tables."),
]
Overrides = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help=_SET)]
WorkerCount = Annotated[
    int,
    typer.Option("--workers", min=0, max=MAX_WORKERS, metavar="N", show_default=False, help=WORKERS_HELP),
]
Backend = Annotated[str, typer.Option("--backend", metavar="NAME", show_default=False, help=BACKEND_HELP)]
WeightsOf = Annotated[str, typer.Option("--weights", metavar="WHAT", show_default=False, help=_WEIGHTS)]
Force = Annotated[bool, typer.Option("--force", help=FORCE_HELP)]
Report = Annotated[
    bool, typer.Option("--report", help="Also write the page DIR/report.html, as `nadi report DIR` does.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON instead of the report.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(run)


def run(
    file: File = None,
    model: Model = None,
    plan: Plan = None,
    framework: Framework = None,
    cluster: Cluster = None,
    gpus: Gpus = None,
    fidelity: Fidelity = None,
    out: Out = None,
    overrides: Overrides = [],  # noqa: B006 - typer makes a new list for each run
    workers: WorkerCount = 0,
    backend: Backend = "",
    weights: WeightsOf = "",
    force: Force = False,
    report: Report = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Simulate a run file, or a step of a model on a cluster, and report where the time went."""
    from nadi.launching.launcher import connected_ranks
    from nadi.launching.world import together

    begin_s = time.monotonic()
    ranks = connected_ranks(os.environ)
    from nadi.configuration.run_file import load_config
    from nadi.configuration.sections import WEIGHT_SOURCES
    from nadi.errors import ConfigError
    from topologies.clusters import with_path_from

    named = {
        "workload.model": model,
        "workload.plan": plan,
        "workload.framework": framework,
        "topology.cluster": cluster and with_path_from(Path.cwd(), cluster),
        "topology.gpus": gpus,
        "network.fidelity": fidelity,
    }
    from_options = (
        _overrides(named)
        + [f"engine.workers={workers}"] * bool(workers)
        + [f"engine.backend={backend}"] * bool(backend)
    )
    if weights:
        from_options.append(f"engine.weights={weights if weights in WEIGHT_SOURCES else Path(weights).absolute()}")
    with together(ranks):
        if file is None and not model and not overrides:
            raise ConfigError(
                "found neither a run file nor --model; expected RUN.toml, or --model NAME --plan PLAN --cluster NAME"
            )
        config = load_config(file, [*overrides, *from_options])
        folder = out or config.output.dir
        page = _page(folder, "--report" if report else "report in [output]") if report or config.output.report else None
    _simulated(ranks, config, folder, begin_s, force=force, as_json=as_json, quiet=quiet)
    if folder and page and ranks.rank == 0:
        _write_page(folder, page, to_stderr=as_json)


def _simulated(
    ranks: "RankGather",
    config: "RunConfig",
    folder: Path | None,
    begin_s: float,
    *,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Simulate a configuration; write and print the results, with the time since `begin_s` of the monotonic clock."""
    from nadi.configuration.from_model import remarks
    from nadi.insight.analysis.findings import merge, part
    from nadi.launching.progress import progress
    from nadi.launching.world import together
    from nadi.reports.result_files.run_folder import RUN_FILES, SUMMARY_KEY, summary, write_results
    from nadi.reports.result_files.staging import staged
    from nadi.reports.text.run import print_report
    from nadi.simulation.run import simulate
    from nadi.terminal.printing import say

    is_first = ranks.rank == 0
    for remark in remarks(config) if is_first else ():
        say(f"nadi: {remark}", err=True)
    with staged(folder, RUN_FILES, ranks, key=SUMMARY_KEY) if folder else nullcontext() as staging:
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
        print_report(simulation, findings, folder, time.monotonic() - begin_s)


def _page(folder: Path | None, source: str) -> Path:
    """Return the path of the page, and check before the run that it can be written; source: option that requests it."""
    from nadi.errors import ConfigError
    from nadi.reports.pages.page import check_page
    from nadi.reports.result_files.run_folder import REPORT

    if folder is None:
        raise ConfigError(f"{source}: found no folder of results; expected --out DIR, or dir in [output]")
    check_page(folder / REPORT)
    return folder / REPORT


def _write_page(folder: Path, page: Path, *, to_stderr: bool) -> None:
    """Write the page of a run whose results are written."""
    from nadi.insight.runs import Run
    from nadi.reports.pages.page import write_page
    from nadi.reports.pages.report import report
    from nadi.terminal.printing import say

    write_page(page, report(Run(folder)))
    say(f"page: {page}", err=to_stderr)


def _overrides(named: dict[str, str | int | None]) -> list[str]:
    """Return the options as --set expects them; text is quoted, so that it remains text."""
    return [f"{key}={json.dumps(value)}" for key, value in named.items() if value is not None]
