"""`nadi bench`: measure the simulation speed of this machine."""

import os
from typing import Any

import typer

from nadi.cli.options import AsJson, BackendName, Quiet, WorkerCount, backend_of, benches, topology_names
from nadi.cli.output import print_document
from nadi.configuration import MAX_SEED
from nadi.errors import ConfigError
from nadi.inputs.units import MIB
from nadi.terminal import FittedTable, facts, name_column

MAX_RUNS = 10_000
_NAME = "Benchmark: permutation, roce, allreduce, hierarchical, pairs, flow, coupled, reuse, or trace (of files)."
_TOPOLOGY = "Fabric that replaces the benchmark's."
_SCALING = "Measure serial, two concurrent copies, two ranks with and without shared memory, processes, threads."


def bench(
    name: str = typer.Argument("permutation", metavar="NAME", help=_NAME, autocompletion=benches),
    as_json: AsJson = False,
    topology: str = typer.Option("", "--topology", "-t", metavar="SPEC", help=_TOPOLOGY, autocompletion=topology_names),
    size: str = typer.Option("", metavar="BYTES", help="Size of each NPU's message, or of the all-reduce."),
    seed: int = typer.Option(1, min=0, max=MAX_SEED, help="Seed of the permutation and of ECMP."),
    runs: int = typer.Option(5, min=1, max=MAX_RUNS, help="Number of runs, of which the fastest counts."),
    workers: WorkerCount = 1,
    backend: BackendName = "threads",
    share_memory: bool = typer.Option(True, help="Whether MPI ranks of one node use shared memory."),
    scaling: bool = typer.Option(False, "--scaling", help=_SCALING),
    quiet: Quiet = False,
) -> None:
    """Measure packet-hops per second of a standard run, and the rate of a plain event heap on this machine."""
    if name == "trace":
        _measure_decoding(runs, as_json=as_json, quiet=quiet)
        return
    if name == "reuse":
        if topology or size:
            raise ConfigError(f"bench reuse: found {'--topology' if topology else '--size'}; expected neither")
        _measure_reuse(seed, runs, as_json=as_json, quiet=quiet)
        return
    from nadi.launching.launcher import connected_ranks

    ranks = connected_ranks(os.environ)
    from nadi.inputs.limits import MAX_BYTES
    from nadi.inputs.units import parse_bytes_within
    from nadi.launching.progress import progress
    from nadi.launching.workers import Workers
    from nadi.launching.world import together
    from nadi.pdes.fidelity import FLUID
    from nadi.studies.benchmarks.bench import BENCHES, run_bench
    from nadi.studies.benchmarks.scaling import measure_pairs

    with together(ranks):
        if name not in {*BENCHES, FLUID, "coupled"}:
            raise ConfigError(f"bench {name!r}: expected one of {', '.join(BENCHES)}, {FLUID}, coupled, reuse, trace")
        kind_of_workers = backend_of(backend, ranks)
        size_bytes = parse_bytes_within(size, MAX_BYTES) if size else 0
        if size and not size_bytes:
            raise ConfigError(f"--size {size}: found 0 bytes; expected more")
    if name not in BENCHES:
        from nadi.studies.benchmarks.bench import run_coupled_bench, run_flow_bench

        run_flows = run_flow_bench if name == FLUID else run_coupled_bench
        found = run_flows(spec=topology, size_bytes=size_bytes, seed=seed, runs=runs)
        print_document(found, _flows_table, as_json=as_json)
        return
    if scaling:
        with progress(quiet=quiet) as shown:
            pairs = measure_pairs(name, shown, topology=topology, size=size, runs=runs)
        print_document(pairs, lambda found: _scaling_table(name, found), as_json=as_json)
        return
    own = Workers(ranks, kind_of_workers, workers, share_memory=share_memory)
    with progress(quiet=quiet or ranks.rank > 0) as shown:
        figures = run_bench(name, shown, spec=topology, size_bytes=size_bytes, seed=seed, runs=runs, workers=own)
    if ranks.rank == 0:
        print_document(figures, lambda found: _figures_table(name, found, runs), as_json=as_json)


def _figures_table(bench_name: str, figures: dict[str, Any], num_runs: int) -> FittedTable:
    """Return the table of the figures of `run_bench`."""
    from nadi.terminal import buffer_text

    rows = [
        ("packet-hops", f"{figures['packet_hops']:,} in {figures['wall_s']:.3f} s (fastest of {num_runs})"),
        ("packet-hops/s", f"{figures['packet_hops_per_s'] / 1e6:.2f} M"),
        ("event heap/s", f"{figures['calibration_per_s'] / 1e6:.2f} M pop and push pairs, 10,000 pending"),
        ("ratio", f"{figures['ratio']:.2f}"),
        ("set-up", f"{figures['setup_s']:.2f} s, first event after {figures['first_event_s']:.2f} s"),
        ("peak memory", f"{figures['peak_rss_bytes'] / MIB:,.0f} MiB"),
        ("digest", figures["digest"]),
    ]
    title = f"{bench_name} on {figures['topology']}, {figures['npus']} NPUs, {buffer_text(figures['bytes'])} each"
    return facts(title, rows)


def _flows_table(figures: dict[str, Any]) -> FittedTable:
    """Return the table of the figures of `run_flow_bench`."""
    from nadi.terminal import buffer_text

    rows = [
        ("flow events", f"{figures['flow_events']:,} in {figures['wall_s']:.3f} s (fastest of {figures['runs']})"),
        ("messages", f"{figures['messages']:,}"),
        ("flow events/s", f"{figures['flow_events_per_s']:,.0f}"),
        ("in the solver", f"{figures['solver_share']:.0%} of the time, {figures['flows_per_solution']:.0f} flows each"),
        ("peak memory", f"{figures['peak_rss_bytes'] / MIB:,.0f} MiB"),
        ("digest", figures["digest"]),
    ]
    return facts(
        f"{figures['bench']} on {figures['topology']}, {figures['npus']} NPUs, {buffer_text(figures['bytes'])} each",
        rows,
    )


def _measure_decoding(num_runs: int, *, as_json: bool, quiet: bool) -> None:
    """Measure and print the speed of reading traces, the fastest of some runs."""
    from nadi.launching.progress import progress
    from nadi.studies.benchmarks.trace_decoding import run_decoding_bench

    with progress(quiet=quiet) as shown:
        rates = run_decoding_bench(shown, runs=num_runs)
    rates_columns = "M nodes/s", ("all attributes kept", 1), "protobuf M nodes/s", "ratio"
    columns = "nodes", ("bytes/node", 1), *rates_columns, ("peak memory (MiB)", 1), ("memory before (MiB)", 2)
    title = f"traces into tables, on one core (fastest of {num_runs})"
    table = FittedTable(title, name_column("kind of nodes"), *columns)
    for row in rates["files"]:
        speeds = (f"{row[key] / 1e6:.2f}" for key in ("nodes_per_s", "kept_nodes_per_s", "protobuf_nodes_per_s"))
        memory = (f"{row[key] / MIB:,.0f}" for key in ("peak_rss_bytes", "rss_before_bytes"))
        node_bytes = f"{row['file_bytes'] / row['nodes']:,.0f}"
        table.add_row(row["kind"], row["nodes"], node_bytes, *speeds, f"{row['ratio']:.1f}", *memory)
    print_document(rates, lambda _: table, as_json=as_json)


def _measure_reuse(seed: int, num_runs: int, *, as_json: bool, quiet: bool) -> None:
    """Measure and print the speed of a step with and without replay; end with code 1 if their digests differ."""
    from nadi.launching.progress import progress
    from nadi.studies.benchmarks.bench import run_reuse_bench

    with progress(quiet=quiet) as shown:
        figures = run_reuse_bench(shown, seed=seed, runs=num_runs)
    print_document(figures, _reuse_table, as_json=as_json)
    if not figures["same_digest"]:
        raise typer.Exit(1)


def _reuse_table(figures: dict[str, Any]) -> FittedTable:
    """Return the table of the figures of `run_reuse_bench`."""
    comparison = "equal" if figures["same_digest"] else f"but {figures['digest_off']} by all packets"
    rows = [
        ("packet-hops", f"{figures['packet_hops']:,}"),
        ("with replay", f"{figures['exact_s']:.3f} s (fastest of {figures['runs']})"),
        ("all packets", f"{figures['off_s']:.3f} s"),
        ("ratio", f"{figures['ratio']:.1f}"),
        ("simulated", f"{figures['episodes_simulated']:,} episodes, {figures['episode_hops']:,} packet-hops"),
        ("replayed", f"{figures['episodes_replayed']:,} episodes, {figures['replayed_hops']:,} packet-hops"),
        ("records", f"{figures['record_bytes'] / MIB:,.2f} MiB"),
        ("digest", f"{figures['digest']}, {comparison}"),
    ]
    return facts(f"{figures['model']}, {figures['plan']} on {figures['cluster']}", rows)


def _scaling_table(bench_name: str, pairs: dict[str, Any]) -> FittedTable:
    """Return the table of the rates of `measure_pairs`."""
    columns = "M packet-hops/s", "over serial", ("of capacity", 1), ("waiting", 2), ("turns", 3)
    table = FittedTable(f"{bench_name}: two workers against one", name_column("workers"), *columns)
    for row in pairs["rows"]:
        turns = " ".join(f"{rate / 1e6:.1f}" for rate in row["of_turns"])
        speed, speed_up = f"{row['packet_hops_per_s'] / 1e6:.2f}", f"{row['speed_up']:.3f}"
        table.add_row(row["workers"], speed, speed_up, f"{row['share']:.3f}", f"{row['waiting']:.1%}", turns)
    return table
