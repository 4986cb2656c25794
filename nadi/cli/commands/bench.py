"""`nadi bench`: measure the simulation speed of this machine."""

import json
import os

import typer

from inputs.units import MIB
from nadi.cli.commands.run import BACKEND_HELP, WORKERS_HELP
from nadi.cli.completion import benches, topology_names
from nadi.configuration.bounds import MAX_SEED, MAX_WORKERS

MAX_RUNS = 10_000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(bench)


def bench(
    name: str = typer.Argument(
        "permutation",
        metavar="NAME",
        help="Benchmark: permutation, roce, allreduce, hierarchical, pairs, or trace (reading of traces).",
        autocompletion=benches,
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    topology: str = typer.Option(
        "",
        "--topology",
        "-t",
        metavar="SPEC",
        help="Fabric that replaces the benchmark's.",
        autocompletion=topology_names,
    ),
    size: str = typer.Option("", metavar="BYTES", help="Size of each NPU's message, or of the all-reduce."),
    seed: int = typer.Option(1, min=0, max=MAX_SEED, help="Seed of the permutation and of ECMP."),
    runs: int = typer.Option(5, min=1, max=MAX_RUNS, help="Number of runs, of which the fastest counts."),
    workers: int = typer.Option(1, "--workers", min=1, max=MAX_WORKERS, metavar="N", help=WORKERS_HELP),
    backend: str = typer.Option("threads", "--backend", metavar="NAME", help=BACKEND_HELP),
    share_memory: bool = typer.Option(True, help="Whether MPI ranks of one node use shared memory."),
    scaling: bool = typer.Option(
        False,
        "--scaling",
        help="Measure serial, two concurrent copies, two ranks with and without shared memory, processes, threads.",
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Measure packet-hops per second of a standard run, and the rate of a plain event heap on this machine."""
    if name == "trace":
        _decoding(runs, as_json=as_json, quiet=quiet)
        return
    from nadi.launching.launcher import connected_ranks

    ranks = connected_ranks(os.environ)
    from nadi.errors import ConfigError
    from nadi.launching.progress import progress
    from nadi.launching.workers import Workers
    from nadi.launching.world import together
    from nadi.studies.benchmarks.bench import BENCHES, run_bench
    from topologies.bounds import MAX_BYTES
    from topologies.units import parse_bytes_within

    with together(ranks):
        if name not in BENCHES:
            raise ConfigError(f"bench {name!r}: expected one of {', '.join(BENCHES)}, trace")
        if backend not in {"threads", "processes"}:
            raise ConfigError(f"--backend {backend}: expected threads or processes")
        if backend == "processes" and ranks.size > 1:
            raise ConfigError(f"--backend processes: found {ranks.size} MPI ranks; expected threads there")
        size_bytes = parse_bytes_within(size, MAX_BYTES) if size else 0
        if size and not size_bytes:
            raise ConfigError(f"--size {size}: found 0 bytes; expected more")
    if scaling:
        _scaling(name, topology, size, runs, as_json=as_json, quiet=quiet)
        return
    who = Workers(ranks, "processes" if backend == "processes" else "threads", workers, share_memory=share_memory)
    with progress(quiet=quiet or ranks.rank > 0) as shown:
        figures = run_bench(name, shown, spec=topology, size_bytes=size_bytes, seed=seed, runs=runs, workers=who)
    if ranks.rank > 0:
        return
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
        return
    from nadi.terminal.readable import buffer_text
    from nadi.terminal.tables import console, facts

    rows = [
        ("packet-hops", f"{figures['packet_hops']:,} in {figures['wall_s']:.3f} s (fastest of {runs})"),
        ("packet-hops/s", f"{figures['packet_hops_per_s'] / 1e6:.2f} M"),
        ("event heap/s", f"{figures['calibration_per_s'] / 1e6:.2f} M pop and push pairs, 10,000 pending"),
        ("ratio", f"{figures['ratio']:.2f}"),
        ("set-up", f"{figures['setup_s']:.2f} s, first event after {figures['first_event_s']:.2f} s"),
        ("peak memory", f"{figures['peak_rss_bytes'] / MIB:,.0f} MiB"),
        ("digest", figures["digest"]),
    ]
    title = f"{name} on {figures['topology']}, {figures['npus']} NPUs, {buffer_text(figures['bytes'])} each"
    console().print(facts(title, rows))


def _decoding(runs: int, *, as_json: bool, quiet: bool) -> None:
    from nadi.launching.progress import progress
    from nadi.studies.benchmarks.trace_decoding import run_decoding_bench

    with progress(quiet=quiet) as shown:
        found = run_decoding_bench(shown, runs=runs)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from nadi.terminal.tables import FittedTable, TableColumn, console

    table = FittedTable(
        f"traces into tables, on one core (fastest of {runs})",
        TableColumn("kind of nodes", form="name"),
        "nodes",
        TableColumn("bytes/node", 1),
        "M nodes/s",
        TableColumn("all attributes kept", 1),
        "protobuf M nodes/s",
        "ratio",
        TableColumn("peak memory (MiB)", 1),
        TableColumn("memory before (MiB)", 2),
    )
    for row in found["files"]:
        table.add_row(
            row["kind"],
            f"{row['nodes']:,}",
            f"{row['file_bytes'] / row['nodes']:,.0f}",
            f"{row['nodes_per_s'] / 1e6:.2f}",
            f"{row['kept_nodes_per_s'] / 1e6:.2f}",
            f"{row['protobuf_nodes_per_s'] / 1e6:.2f}",
            f"{row['ratio']:.1f}",
            f"{row['peak_rss_bytes'] / MIB:,.0f}",
            f"{row['rss_before_bytes'] / MIB:,.0f}",
        )
    console().print(table)


def _scaling(name: str, topology: str, size: str, runs: int, *, as_json: bool, quiet: bool) -> None:
    from nadi.launching.progress import progress
    from nadi.studies.benchmarks.scaling import measure_pairs

    with progress(quiet=quiet) as shown:
        found = measure_pairs(name, shown, topology=topology, size=size, runs=runs)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from nadi.terminal.tables import FittedTable, TableColumn, console

    table = FittedTable(
        f"{name}: two workers against one",
        TableColumn("workers", form="name"),
        "M packet-hops/s",
        "over serial",
        TableColumn("of capacity", 1),
        TableColumn("waiting", 2),
        TableColumn("turns", 3),
    )
    for row in found["rows"]:
        table.add_row(
            row["workers"],
            f"{row['packet_hops_per_s'] / 1e6:.2f}",
            f"{row['speed_up']:.3f}",
            f"{row['share']:.3f}",
            f"{row['waiting']:.1%}",
            " ".join(f"{rate / 1e6:.1f}" for rate in row["of_turns"]),
        )
    console().print(table)
