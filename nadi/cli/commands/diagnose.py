"""`nadi diagnose`: whether measured times of collectives are healthy, and what is wrong if not."""

from pathlib import Path
from typing import Annotated

import typer

from nadi.cli.options import AsJson, cluster_names, named_path
from nadi.cli.output import check_outputs, print_document
from nadi.terminal import say

_CLUSTER = "Cluster or machine that was measured: name or file, optionally with parameters."
_LOG = "Output of nccl-tests, rccl-tests or mscclpp-test on the cluster. Repeatable."
_GPUS = "Number of GPUs of logs that do not show it."
_OUT = "File for a page."
_FAIL_BELOW = (
    "Exit with 1 if the largest size of a test is below a share of the expectation, 90%, or a bandwidth, 350GB/s."
)


def diagnose(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help=_CLUSTER, autocompletion=cluster_names)],
    logs: Annotated[list[Path], typer.Option("--log", metavar="FILE", parser=named_path, help=_LOG)],
    gpus: Annotated[int, typer.Option(min=0, show_default=False, help=_GPUS)] = 0,
    fail_below: Annotated[str, typer.Option(metavar="SHARE|RATE", show_default=False, help=_FAIL_BELOW)] = "",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", parser=named_path, show_default=False, help=_OUT)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare logs of nccl-tests with a healthy cluster, and find the cause of slow collectives."""
    from nadi.studies.diagnosis import BandwidthGate, diagnose as diagnosed, diagnosis_tables, read, write_page

    gate = BandwidthGate.parse(fail_below) if fail_below else None
    check_outputs(out, None)
    diagnosis = diagnosed(cluster, read(logs, gpus))
    print_document(diagnosis.document() if as_json else diagnosis, diagnosis_tables, as_json=as_json)
    if out:
        write_page(diagnosis, out)
        say(f"written: {out}", err=as_json)
    failure = gate.failure(diagnosis) if gate else ""
    if failure:
        say(f"nadi: below --fail-below: {failure}", err=True)
        raise typer.Exit(1)
