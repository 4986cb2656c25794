"""`nadi calibrate`: constants of a site, fitted to its measurements and written as a cluster file."""

from pathlib import Path
from typing import Annotated

import typer

from nadi.cli.options import AsJson, Quiet, cluster_names, named_path
from nadi.cli.output import print_document
from nadi.terminal import say

_CLUSTER = "Cluster or machine that was measured: name or file, optionally with parameters."
_LOG = "Output of nccl-tests on the cluster. Repeatable."
_TRACE = "Table of measured training steps, FILE.csv: model, plan, and step_ms or traces. Repeatable."
_OUTPUT = "Cluster file to write, FILE.toml."


def calibrate(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help=_CLUSTER, autocompletion=cluster_names)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.toml", parser=named_path, help=_OUTPUT)],
    logs: Annotated[list[Path], typer.Option("--log", metavar="FILE", parser=named_path, help=_LOG)] = [],
    traces: Annotated[list[Path], typer.Option("--trace", metavar="FILE.csv", parser=named_path, help=_TRACE)] = [],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fit the constants of a site to nccl-tests and steps; check held-out rows, and write a cluster file."""
    from nadi.launching.progress import progress
    from nadi.studies.calibration import calibrate_site, calibration_document, calibration_tables, write_cluster

    with progress(quiet=quiet) as shown:
        found = calibrate_site(cluster, logs, traces, shown)
    print_document(calibration_document(found) if as_json else found, calibration_tables, as_json=as_json)
    write_cluster(found, output)
    for calibration in found:
        if calibration.refusal():
            say(f"{calibration.rows.noun}: cited constants stay: {calibration.refusal()}", err=True)
    say(f"cluster: {output}", err=as_json)
