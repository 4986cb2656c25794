"""`nadi collective`: time one collective over a range of sizes, like nccl-tests."""

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from nadi.cli.commands.run import BACKEND_HELP, WORKERS_HELP
from nadi.cli.commands.topology import SPEC_HELP
from nadi.cli.completion import algorithms, kinds, topology_names
from nadi.cli.options import FORCE_HELP, named_path
from nadi.configuration.bounds import MAX_SEED, MAX_WORKERS

if TYPE_CHECKING:
    from nadi.configuration.sections import RunConfig
    from nadi.launching.gather import RankGather
    from nadi.launching.workers import Backend, Workers
    from nadi.studies.collectives.microbench import ChosenAlgorithms, CollectiveCase
    from nadi.studies.collectives.sweep import CollectiveSweep
    from pdes import Settings
    from topologies import Graph

_KINDS = "all-reduce, all-gather, reduce-scatter, all-to-all, all-to-all-v, ..."
_SIZES = "Sizes of the whole buffer in bytes: 8:8GiB:x2, 1MiB:8MiB:+1MiB, or 1KiB,1MiB."
_MATRIX = "all-to-all-v: matrix of bytes from each NPU (row) to each NPU, CSV or .npy; replaces --sizes."
_SKEW = "all-to-all-v: distribution of the --sizes of each NPU over the receivers."
_ALGORITHMS = "Algorithms, such as ring,direct, or all for all possible ones. Default: the kind's. Repeatable."
_SET = "Value of the run file's [network] or [system], or topology.params, such as network.mtu=1KiB."

Kind = Annotated[str, typer.Argument(metavar="KIND", help=_KINDS, autocompletion=kinds)]
Topology = Annotated[
    str, typer.Option("--topology", "-t", metavar="SPEC", help=SPEC_HELP, autocompletion=topology_names)
]
Sizes = Annotated[str, typer.Option(help=_SIZES)]
Matrix = Annotated[Path | None, typer.Option(metavar="FILE", parser=named_path, help=_MATRIX)]
Skew = Annotated[str, typer.Option(metavar="zipf:EXPONENT", help=_SKEW)]
Algorithms = Annotated[list[str], typer.Option(metavar="NAMES", help=_ALGORITHMS, autocompletion=algorithms)]
Out = Annotated[
    Path | None,
    typer.Option("-o", "--out", metavar="DIR", parser=named_path, help="Folder for a Parquet table and a page."),
]
Overrides = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help=_SET)]
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of all hashed choices.")]
WorkerCount = Annotated[int, typer.Option("--workers", min=1, max=MAX_WORKERS, metavar="N", help=WORKERS_HELP)]
BackendName = Annotated[str, typer.Option("--backend", metavar="NAME", help=BACKEND_HELP)]
Force = Annotated[bool, typer.Option("--force", help=FORCE_HELP)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


class _Measurement(NamedTuple):
    """The collective to time, its fabric and settings, and the workers."""

    config: "RunConfig"
    graph: "Graph"
    done: "CollectiveCase"
    source: str
    steps: list[int]
    settings: "Settings"
    chosen: "ChosenAlgorithms"
    who: "Workers"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(collective)


def collective(
    kind: Kind,
    topology: Topology,
    sizes: Sizes = "1MiB",
    matrix: Matrix = None,
    skew: Skew = "",
    algorithm: Algorithms = [],  # noqa: B006 - typer creates a new list per call
    out: Out = None,
    overrides: Overrides = [],  # noqa: B006 - the same
    seed: Seed = 1,
    workers: WorkerCount = 1,
    backend: BackendName = "threads",
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Time a collective of all NPUs on an idle fabric; print algorithm and bus bandwidth and the closed form."""
    from nadi.launching.launcher import connected_ranks
    from nadi.launching.world import together

    ranks = connected_ranks(os.environ)
    from nadi.configuration.effects import without_effect
    from nadi.launching.workers import Workers
    from nadi.studies.collectives.microbench import skipped_text
    from nadi.terminal.printing import say

    with together(ranks):
        who = Workers(ranks, _backend(backend, ranks), workers)
        config = _config(topology, overrides)
        measurement = _measurement(config, kind, sizes, matrix, skew, ",".join(algorithm), seed, who, force=force)
    if measurement.chosen.left_out and ranks.rank == 0:
        say(f"nadi: skipped: {skipped_text(measurement.chosen.left_out)}", err=True)
    if unused := without_effect(config) if ranks.rank == 0 else "":
        say(f"nadi: {unused}", err=True)
    sweep = _measured(measurement, out, quiet=quiet)
    if ranks.rank:
        return
    if as_json:
        typer.echo(json.dumps(sweep.document(), indent=2))
    else:
        _print(sweep)
    if out:
        _say_where(out, err=as_json)


def _backend(name: str, ranks: "RankGather") -> "Backend":
    """Return the backend of a name.

    Raises:
        ConfigError: The name is unknown, or the backend does not support several ranks.
    """
    from nadi.errors import ConfigError

    if name == "threads":
        return "threads"
    if name != "processes":
        raise ConfigError(f"--backend {name}: expected threads or processes")
    if ranks.size > 1:
        raise ConfigError(f"--backend processes: found {ranks.size} MPI ranks; expected threads there")
    return "processes"


def _measurement(
    config: "RunConfig",
    kind: str,
    sizes: str,
    matrix: Path | None,
    skew: str,
    algorithm: str,
    seed: int,
    who: "Workers",
    *,
    force: bool,
) -> _Measurement:
    """Return the options, read and checked against the fabric."""
    import topologies
    from nadi.simulation.fidelities.fabric_settings import fitted
    from nadi.simulation.run import network_settings
    from nadi.simulation.wiring.affordable import check_fabric, checker
    from nadi.simulation.wiring.reading import collective_settings
    from nadi.studies.collectives.microbench import choose, sizes_of
    from nadi.studies.collectives.skew import demand

    check_fabric(config.topology.source(), force=force)
    graph = topologies.build(config.topology.source())
    done, source = demand(kind, matrix, skew, graph.npus, seed, collective_settings(config, graph, force=force))
    steps = [0] if matrix else sizes_of(kind, sizes)
    settings = fitted(
        graph, network_settings(config.network, config.system, seed=seed, record_nodes=False, record_flows=False)
    )
    check = checker(graph, settings, who.ranks.size * who.workers, force=force)
    chosen = choose(graph, done, algorithm, steps, check)
    return _Measurement(config, graph, done, source, steps, settings, chosen, who)


def _measured(measurement: _Measurement, out: Path | None, *, quiet: bool) -> "CollectiveSweep":
    """Return all rows, also written into a folder if `out` is given."""
    from nadi.launching.progress import progress
    from nadi.launching.world import together
    from nadi.reports.result_files.staging import staged
    from nadi.studies.collectives.files import FILES, write_sweep
    from nadi.studies.collectives.microbench import measure
    from nadi.studies.collectives.sweep import CollectiveSweep

    graph, ranks = measurement.graph, measurement.who.ranks
    with staged(out, FILES, ranks) if out else nullcontext() as staging:
        with progress(quiet=quiet or ranks.rank != 0) as shown:
            rows = list(
                measure(
                    graph,
                    measurement.done,
                    measurement.chosen,
                    measurement.steps,
                    measurement.settings,
                    shown,
                    measurement.who,
                )
            )
        sweep = CollectiveSweep(
            measurement.done.kind,
            graph.name,
            graph.npus,
            measurement.config.network,
            measurement.settings.seed,
            rows,
            measurement.chosen.left_out,
            measurement.source,
            measurement.config.system,
        )
        with together(ranks):
            if staging:
                write_sweep(staging, sweep)
    return sweep


def _config(topology: str, overrides: list[str]) -> "RunConfig":
    """Return the configuration of an equivalent run file; closed forms are rejected."""
    from nadi.configuration.run_file import collective_config
    from nadi.errors import ConfigError

    config = collective_config(topology, overrides)
    if config.network.fidelity == "closed-form":
        raise ConfigError('[network] fidelity: found "closed-form", which every row contains anyway; expected another')
    return config


def _say_where(out: Path, *, err: bool) -> None:
    """Print the folder of the results, and whether it has no page."""
    from nadi.reports.pages import missing_page_note
    from nadi.studies.collectives.files import PAGE
    from nadi.terminal.printing import say

    say(f"results: {out}{missing_page_note(PAGE)}", err=err)


def _print(sweep: "CollectiveSweep") -> None:
    from nadi.studies.collectives.text import sweep_table, winners_table
    from nadi.terminal.tables import console

    out = console()
    out.print(sweep_table(sweep))
    if len({row.algorithm for row in sweep.rows}) > 1:
        out.print(winners_table(sweep))
