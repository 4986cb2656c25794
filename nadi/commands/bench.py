"""`nadi bench`: how fast this machine simulates."""

import json

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(bench)


def bench(
    name: str = typer.Argument("permutation", metavar="NAME", help="permutation, allreduce or pairs."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    topology: str = typer.Option("", "--topology", "-t", metavar="SPEC", help="Another fabric."),
    size: str = typer.Option("", metavar="BYTES", help="Another size: each NPU's message, or the all-reduce."),
    seed: int = typer.Option(1, min=0, help="Of the permutation and of ECMP."),
    runs: int = typer.Option(5, min=1, help="The figures are those of the fastest of so many runs."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Packet-hops per second of a standard run, beside the rate of a plain event heap on this machine."""
    from nadi.bench import BENCHES, run_bench
    from nadi.errors import ConfigError
    from nadi.progress import progress
    from topologies.units import parse_bytes

    if name not in BENCHES:
        raise ConfigError(f"bench {name!r}: expected one of {', '.join(BENCHES)}")
    size_bytes = parse_bytes(size) if size else 0
    with progress(quiet=quiet) as shown:
        figures = run_bench(name, shown, spec=topology, size_bytes=size_bytes, seed=seed, runs=runs)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
        return
    typer.echo(f"{name} on {figures['topology']}, {figures['npus']} NPUs, {figures['bytes']:,} bytes each")
    typer.echo(f"packet-hops     {figures['packet_hops']:,} in {figures['wall_s']:.3f} s (fastest of {runs})")
    typer.echo(f"packet-hops/s   {figures['packet_hops_per_s'] / 1e6:.2f} M")
    typer.echo(f"event heap/s    {figures['calibration_per_s'] / 1e6:.2f} M pop and push pairs, 10,000 pending")
    typer.echo(f"ratio           {figures['ratio']:.2f}")
    typer.echo(f"set-up          {figures['setup_s']:.2f} s, first event after {figures['first_event_s']:.2f} s")
    typer.echo(f"peak memory     {figures['peak_rss_bytes'] / 2**20:,.0f} MiB")
    typer.echo(f"digest          {figures['digest']}")
