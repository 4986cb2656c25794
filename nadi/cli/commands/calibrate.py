"""`nadi calibrate`: constants of a site, fitted to its measurements and written as a cluster file."""

from pathlib import Path
from typing import Annotated

import typer

from nadi.cli.options import AsJson, Quiet, cluster_names, named_path
from nadi.cli.output import print_document
from nadi.terminal import say

_CLUSTER = "Cluster or machine that was measured: name or file, optionally with parameters."
_LOG = "Output of nccl-tests on the cluster. Repeatable."
_OUTPUT = "Cluster file to write, FILE.toml."


def calibrate(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help=_CLUSTER, autocompletion=cluster_names)],
    logs: Annotated[list[Path], typer.Option("--log", metavar="FILE", parser=named_path, help=_LOG)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.toml", parser=named_path, help=_OUTPUT)],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fit the constants of a site to logs of nccl-tests; check held-out rows, and write a cluster file."""
    from nadi.launching.progress import progress
    from nadi.studies.calibration import (
        calibrate as fitted,
        calibration_document,
        calibration_tables,
        read_rows,
        write_cluster,
    )

    rows = read_rows(logs)
    with progress(quiet=quiet) as shown:
        calibration = fitted(cluster, rows, shown)
    found = calibration_document(calibration) if as_json else calibration
    print_document(found, calibration_tables, as_json=as_json)
    write_cluster(calibration, output)
    say(f"cluster: {output}", err=as_json)
