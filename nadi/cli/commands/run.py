"""`nadi run`: simulate a run file."""

import json
import os
import time
from pathlib import Path

import typer

from nadi.cli.options import Force, Overrides, Quiet, cluster_names, model_names, named_path
from nadi.cli.output import run_and_report
from nadi.configuration import MAX_WORKERS
from nadi.errors import ConfigError
from nadi.inputs import plug_ins

_FILE = "Run file; docs/reference/run-file.md lists its keys."
_MODEL = "Model to train, by name or file: `nadi workload models`."
_PLAN = "Parallel plan, such as tp8,pp4,dp32."
_FRAMEWORK = "Framework: megatron (default), deepspeed or fsdp for training, or inference for serving."
_CLUSTER = "Name in `nadi topology clusters` or TOML file, optionally with parameters: selene:rate=100Gbps."
_GPUS = "Number of GPUs of the cluster. Default: those of the plan."
_FIDELITY = "Network model: `nadi net fidelities` lists them."
_OUT = "Folder for summary.json and the tables."
_RESUME = "Continue the run whose results would be in this folder from its newest checkpoint."
_WORKERS = "Number of threads or processes on this machine; under mpiexec, threads per rank."
_WEIGHTS = "Source of the weights for dividing the fabric: traces, fabric, or an earlier run's folder."


def run(
    file: Path | None = typer.Argument(None, metavar="[RUN.toml]", show_default=False, help=_FILE),
    model: str | None = typer.Option(None, metavar="NAME", show_default=False, help=_MODEL, autocompletion=model_names),
    plan: str | None = typer.Option(None, metavar="PLAN", show_default=False, help=_PLAN),
    framework: str | None = typer.Option(None, metavar="NAME", show_default=False, help=_FRAMEWORK),
    cluster: str | None = typer.Option(
        None, metavar="NAME", show_default=False, help=_CLUSTER, autocompletion=cluster_names
    ),
    gpus: int | None = typer.Option(None, min=1, metavar="N", show_default=False, help=_GPUS),
    fidelity: str | None = typer.Option(None, metavar="NAME", show_default=False, help=_FIDELITY),
    out: Path | None = typer.Option(None, metavar="DIR", parser=named_path, help=_OUT),
    overrides: Overrides = [],
    workers: int = typer.Option(0, min=0, max=MAX_WORKERS, metavar="N", show_default=False, help=_WORKERS),
    backend: str = typer.Option("", metavar="NAME", show_default=False, help="Kind of workers: threads or processes."),
    weights: str = typer.Option("", metavar="WHAT", show_default=False, help=_WEIGHTS),
    exact: bool = typer.Option(False, "--exact", help='Simulate each packet; nothing is replayed (reuse = "off").'),
    resume: Path | None = typer.Option(None, metavar="DIR", parser=named_path, show_default=False, help=_RESUME),
    force: Force = False,
    report: bool = typer.Option(False, "--report", help="Also write DIR/report.html, as `nadi report DIR` does."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON instead of the report."),
    quiet: Quiet = False,
) -> None:
    """Simulate a run file, or a step of a model on a cluster, and report where the time went."""
    from nadi.launching.launcher import connected_ranks

    begin_s = time.monotonic()
    ranks = connected_ranks(os.environ)
    from nadi.api.running import run_request
    from nadi.configuration.sections import WEIGHT_SOURCES
    from nadi.launching.world import together

    def from_here(kind: str, name: str | None) -> str | None:
        return name and plug_ins.with_path(kind, name, lambda path: str(Path(path).absolute()))

    named = {
        "workload.model": model,
        "workload.plan": plan,
        "workload.framework": framework,
        "topology.cluster": from_here("cluster", cluster),
        "topology.gpus": gpus,
        "network.fidelity": from_here("network model", fidelity),
    }
    # JSON quotes texts, so that they stay texts
    from_options = [f"{key}={json.dumps(value)}" for key, value in named.items() if value is not None]
    from_options += [f"engine.workers={workers}"] * bool(workers) + [f"engine.backend={backend}"] * bool(backend)
    from_options += ['engine.reuse="off"'] * exact
    if weights:
        from_options.append(f"engine.weights={weights if weights in WEIGHT_SOURCES else Path(weights).absolute()}")
    with together(ranks):
        request = run_request(file, overrides, options=from_options, out=out, report=report, resume=resume)
        if request.has_page and request.folder is None:
            source = "--report" if report else "report in [output]"
            raise ConfigError(f"{source}: found no folder of results; expected --out DIR, or dir in [output]")
    run_and_report(request, ranks, begin_s, force=force, as_json=as_json, quiet=quiet)
