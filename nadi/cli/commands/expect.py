"""`nadi expect`: what nccl-tests should show on a cluster, and the thresholds of an acceptance test."""

from pathlib import Path
from typing import Annotated

import typer

from nadi.cli import options
from nadi.cli.output import check_outputs, print_document
from nadi.terminal import say

_CLUSTER = "Cluster, machine or topology: name with parameters, such as dgx-h100-superpod:gpus=256, or file."
_HOSTS = "Number of hosts of the largest group; of a machine, all there are. Default: all; one of a machine."
_KINDS = "Collectives, such as all-reduce,all-gather; also gather and scatter. Repeatable. Default: seven."
_SIZES = "Sizes of the whole buffer in bytes: 8:8GiB:x2, or 1KiB,1MiB."
_ALL = "Every power of two of sizes and of hosts."
_COMMAND = "Command line of nccl-tests to answer, such as 'mpirun -np 32 -N 8 all_reduce_perf -b 8M -e 16G -f 2'."
_SET = "Value of the run file's [network] or [system], or topology.params, such as network.mtu=1KiB."
_CSV = "File for all rows and columns."
_THRESHOLDS = "File for the thresholds: collective, bytes, hosts, gpus, bus bandwidth."
_OUT = "File for a page."

Kinds = Annotated[list[str], typer.Option("--kind", metavar="NAMES", help=_KINDS, autocompletion=options.kinds)]


def expect(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help=_CLUSTER, autocompletion=options.topology_names)],
    hosts: int = typer.Option(0, min=0, max=1 << 16, metavar="N", show_default=False, help=_HOSTS),
    kind: Kinds = [],
    sizes: str = typer.Option("", metavar="SIZES", show_default=False, help=_SIZES),
    all_rows: bool = typer.Option(False, "--all", help=_ALL),
    command: str = typer.Option("", metavar="TEXT", show_default=False, help=_COMMAND),
    overrides: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help=_SET),
    csv: Path | None = typer.Option(None, metavar="FILE", parser=options.named_path, help=_CSV),
    thresholds: Path | None = typer.Option(None, metavar="FILE", parser=options.named_path, help=_THRESHOLDS),
    out: Path | None = typer.Option(None, "-o", "--out", metavar="FILE", parser=options.named_path, help=_OUT),
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Print what nccl-tests should show on a cluster: times, bandwidths, NCCL's choices, limits, and thresholds."""
    from nadi.api.running import expected
    from nadi.launching.progress import progress
    from nadi.studies.expectation import expectation_table, written

    check_outputs(out, None)
    with progress(quiet=quiet) as shown:
        found = expected(cluster, hosts, kind, sizes, command, overrides, all_rows=all_rows, tell=shown.begin)
    written(found, csv, thresholds, out)
    print_document(found.document() if as_json else found, expectation_table, as_json=as_json)
    for file in (csv, thresholds, out):
        if file:
            say(f"written: {file}", err=as_json)
