"""`nadi collective`: one collective, size after size, like nccl-tests."""

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nadi.bounds import MOST_SEED, MOST_WORKERS
from nadi.commands.run import BACKEND_HELP, WORKERS_HELP
from nadi.commands.topology import SPEC_HELP
from nadi.completion import algorithms, kinds, topology_names
from nadi.options import FORCE_HELP, named_path

if TYPE_CHECKING:
    from nadi.config import RunConfig
    from nadi.sweeps.sweep import Sweep


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(collective)


def collective(
    kind: str = typer.Argument(
        metavar="KIND",
        help="all-reduce, all-gather, reduce-scatter, all-to-all, all-to-all-v, ...",
        autocompletion=kinds,
    ),
    topology: str = typer.Option(
        ..., "--topology", "-t", metavar="SPEC", help=SPEC_HELP, autocompletion=topology_names
    ),
    sizes: str = typer.Option("1MiB", help="Bytes of the whole buffer: 8:8GiB:x2, 1MiB:8MiB:+1MiB, or 1KiB,1MiB."),
    matrix: Path | None = typer.Option(
        None,
        metavar="FILE",
        parser=named_path,
        help="all-to-all-v: bytes from each NPU (row) to each, CSV or .npy; in place of --sizes.",
    ),
    skew: str = typer.Option(
        "", metavar="zipf:EXPONENT", help="all-to-all-v: who gets how much of the --sizes that each NPU sends."
    ),
    algorithm: list[str] = typer.Option(
        [],
        metavar="NAMES",
        help="As ring,direct; or all that the fabric can do; the kind's default if not given. Repeatable.",
        autocompletion=algorithms,
    ),
    out: Path | None = typer.Option(
        None, "-o", "--out", metavar="DIR", parser=named_path, help="Folder for a Parquet table and a page."
    ),
    overrides: list[str] = typer.Option(
        [],
        "--set",
        metavar="KEY=VALUE",
        help="A value of the run file's [network] or [system], or topology.params; as network.mtu=1KiB.",
    ),
    seed: int = typer.Option(1, min=0, max=MOST_SEED, help="Of all hashed choices."),
    workers: int = typer.Option(1, "--workers", min=1, max=MOST_WORKERS, metavar="N", help=WORKERS_HELP),
    backend: str = typer.Option("threads", "--backend", metavar="NAME", help=BACKEND_HELP),
    force: bool = typer.Option(False, "--force", help=FORCE_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Time a collective of all NPUs of an idle fabric, with algorithm and bus bandwidth and the closed form."""
    from nadi.launching.launcher import connected_ranks
    from nadi.launching.world import together

    ranks = connected_ranks(os.environ)
    import topologies
    from nadi.errors import ConfigError
    from nadi.fidelities import fabric_settings as fabric
    from nadi.launching.progress import progress
    from nadi.launching.workers import Workers
    from nadi.results.staging import staged
    from nadi.results.sweep_files import FILES, write_sweep
    from nadi.simulate import network_settings
    from nadi.sweeps.microbench import choose, listed, measure, sizes_of
    from nadi.sweeps.skew import demand
    from nadi.sweeps.sweep import Sweep
    from nadi.terminal.printing import say
    from nadi.wiring.affordable import check_fabric, checker
    from nadi.wiring.reading import collective_settings

    with together(ranks):
        if backend not in {"threads", "processes"}:
            raise ConfigError(f"--backend {backend}: expected threads or processes")
        if backend == "processes" and ranks.size > 1:
            raise ConfigError(f"--backend processes: found {ranks.size} MPI ranks; expected threads there")
        config = _config(topology, overrides)
        check_fabric(config.topology.source(), force=force)
        graph = topologies.build(config.topology.source())
        done, source = demand(kind, matrix, skew, graph.npus, seed, collective_settings(config, graph, force=force))
        steps = [0] if matrix else sizes_of(kind, sizes)
        settings = fabric.fitted(
            graph, network_settings(config.network, config.system, seed=seed, record_nodes=False, record_flows=False)
        )
        check = checker(graph, settings, ranks.size * workers, force=force)
        chosen, left_out = choose(graph, done, ",".join(algorithm), steps, check)
    is_first = ranks.rank == 0
    if left_out and is_first:
        say(f"nadi: left out: {listed(left_out)}", err=True)
    who = Workers(ranks, "processes" if backend == "processes" else "threads", workers)
    with staged(out, FILES, ranks) if out else nullcontext() as staging:
        with progress(quiet=quiet or not is_first) as shown:
            rows = list(measure(graph, done, chosen, steps, settings, shown, who))
        sweep = Sweep(kind, graph.name, graph.npus, config.network, seed, rows, left_out, source, config.system)
        with together(ranks):
            if staging:
                write_sweep(staging, sweep)
    if not is_first:
        return
    if as_json:
        typer.echo(json.dumps(sweep.document(), indent=2))
    else:
        _print(sweep)
    if out:
        _say_where(out, err=as_json)


def _config(topology: str, overrides: list[str]) -> "RunConfig":
    """What a run file would say, of a fidelity at which something crosses the network."""
    from nadi.errors import ConfigError
    from nadi.run_file import collective_config

    config = collective_config(topology, overrides)
    if config.network.fidelity == "closed-form":
        raise ConfigError('[network] fidelity: found "closed-form", which stands in every row; expected another')
    return config


def _say_where(out: Path, *, err: bool) -> None:
    """In which folder the results are, and whether they lack the page."""
    from nadi.pages import has_plotly
    from nadi.results.sweep_files import PAGE
    from nadi.terminal.printing import say

    without = "" if has_plotly() else f", without {PAGE}: plotly is not installed; pip install 'nadi[plot]'"
    say(f"results: {out}{without}", err=err)


def _print(sweep: "Sweep") -> None:
    from nadi.reports.sweep import sweep_table, winners_table
    from nadi.terminal.tables import console

    out = console()
    out.print(sweep_table(sweep))
    if len({row.algorithm for row in sweep.rows}) > 1:
        out.print(winners_table(sweep))
