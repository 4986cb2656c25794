"""`nadi collective`: time one collective over a range of sizes, like nccl-tests."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.options import (
    AsJson,
    BackendName,
    FiguresFolder,
    Force,
    Quiet,
    Topology,
    WorkerCount,
    algorithms,
    backend_of,
    kinds,
    named_path,
)
from nadi.cli.output import check_outputs, print_document, write_charts
from nadi.configuration import MAX_SEED
from nadi.terminal import say

if TYPE_CHECKING:
    from rich.console import Group

    from nadi.studies.collectives import CollectiveSweep

_KINDS = "all-reduce, all-gather, reduce-scatter, all-to-all, all-to-all-v, ..."
_SIZES = "Sizes of the whole buffer in bytes: 8:8GiB:x2, 1MiB:8MiB:+1MiB, or 1KiB,1MiB."
_MATRIX = "all-to-all-v: matrix of bytes from each NPU (row) to each NPU, CSV or .npy; replaces --sizes."
_SKEW = "all-to-all-v: distribution of the --sizes of each NPU over the receivers."
_ALGORITHMS = "Algorithms, such as ring,direct, or all for all possible ones. Default: the kind's. Repeatable."
_SET = "Value of the run file's [network] or [system], or topology.params, such as network.mtu=1KiB."
_FIDELITY = "Network model: `nadi net fidelities` lists them. With closed-form, nothing is simulated."
_OUT = "Folder for a Parquet table and a page."

Sizes = Annotated[str, typer.Option(help=_SIZES)]
Algorithms = Annotated[list[str], typer.Option(metavar="NAMES", help=_ALGORITHMS, autocompletion=algorithms)]
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of all hashed choices.")]


def collective(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=_KINDS, autocompletion=kinds)],
    topology: Topology,
    sizes: Sizes = "1MiB",
    matrix: Path | None = typer.Option(None, metavar="FILE", parser=named_path, help=_MATRIX),
    skew: str = typer.Option("", metavar="zipf:EXPONENT", help=_SKEW),
    algorithm: Algorithms = [],
    fidelity: str = typer.Option("", metavar="NAME", show_default=False, help=_FIDELITY),
    out: Path | None = typer.Option(None, "-o", "--out", metavar="DIR", parser=named_path, help=_OUT),
    figures: FiguresFolder = None,
    overrides: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help=_SET),
    seed: Seed = 1,
    workers: WorkerCount = 1,
    backend: BackendName = "threads",
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Time a collective of all NPUs on an idle fabric; print algorithm and bus bandwidth and the closed form."""
    from nadi.launching.launcher import connected_ranks

    ranks = connected_ranks(os.environ)
    from nadi.api.studies import CollectiveRequest, time_collective
    from nadi.launching.progress import progress
    from nadi.launching.workers import Workers
    from nadi.launching.world import together
    from nadi.studies.collectives import sweep_page

    with together(ranks):
        check_outputs(None, figures)
        own = Workers(ranks, backend_of(backend, ranks), workers)
    by_fidelity = [f'network.fidelity="{fidelity}"'] if fidelity else []
    sweep = time_collective(
        CollectiveRequest(
            kind, topology, sizes, matrix, skew, algorithm, [*overrides, *by_fidelity], seed=seed, out=out
        ),
        own,
        lambda: progress(quiet=quiet or ranks.rank != 0),
        force=force,
    )
    if ranks.rank:
        return
    print_document(sweep.document() if as_json else sweep, _tables, as_json=as_json)
    if out:
        say(f"results: {out}", err=as_json)
    if figures:
        write_charts(figures, sweep_page(sweep), err=as_json)


def _tables(sweep: "CollectiveSweep") -> "Group":
    """Return the table of all rows, and with several algorithms also the fastest by size."""
    from rich.console import Group

    from nadi.studies.collectives import sweep_table, winners_table

    has_several = len({row.algorithm for row in sweep.rows}) > 1
    return Group(sweep_table(sweep), *([winners_table(sweep)] if has_several else []))
