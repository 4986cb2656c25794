"""`nadi collective`: one collective, size after size, like nccl-tests."""

import json
import math

import typer

from nadi.commands.topology import SPEC_HELP


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(collective)


def collective(
    kind: str = typer.Argument(
        metavar="KIND", help="all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, ..."
    ),
    topology: str = typer.Option(..., "--topology", "-t", metavar="SPEC", help=SPEC_HELP),
    sizes: str = typer.Option("1MiB", help="Bytes of the whole buffer: 1MiB:1GiB:x2, 1MiB:8MiB:+1MiB, or 1KiB,1MiB."),
    algorithm: str = typer.Option("", metavar="NAME", help="An algorithm, or all; the kind's default if not given."),
    overrides: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="A value of the run file's [network] section, as network.mtu=1KiB."
    ),
    seed: int = typer.Option(1, min=0, help="Of all hashed choices."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
) -> None:
    """Time a collective of all NPUs of an idle fabric, with algorithm and bus bandwidth and the closed form."""
    import topologies
    import workload
    from nadi import fabric
    from nadi.config import network_section
    from nadi.microbench import measure, parse_sizes
    from nadi.progress import progress
    from nadi.simulate import network_settings

    known = workload.algorithms_of(kind)
    algorithms = list(known) if algorithm == "all" else [algorithm or workload.default_algorithm(kind)]
    steps = parse_sizes(sizes)
    network = network_section(overrides)
    settings = network_settings(network, seed=seed, record_nodes=False, record_flows=False)
    graph = topologies.build(topology)
    settings = fabric.fitted(graph, settings)
    with progress(quiet=quiet) as shown:
        rows = [row._asdict() for row in measure(graph, kind, algorithms, steps, settings, shown)]
    if as_json:
        for row in rows:
            row["ratio"] = None if math.isnan(row["ratio"]) else row["ratio"]
        document = {
            "kind": kind,
            "topology": graph.name,
            "npus": graph.npus,
            "network": network.model_dump(mode="json"),
            "rows": rows,
        }
        typer.echo(json.dumps(document, indent=2))
    else:
        _print(graph.name, graph.npus, kind, rows)


def _print(name: str, npus: int, kind: str, rows: list[dict]) -> None:
    from nadi.report import plain_table, wide_console

    headings = ("algorithm", "bytes", "time µs", "algbw GB/s", "busbw GB/s", "closed form µs", "ratio")
    shown = plain_table(f"{kind} of {npus} NPUs on {name}", *headings)
    for row in rows:
        shown.add_row(
            row["algorithm"],
            f"{row['bytes']:,}",
            f"{row['time_ps'] / 1e6:,.3f}",
            f"{row['algbw_Bps'] / 1e9:.3f}",
            f"{row['busbw_Bps'] / 1e9:.3f}",
            f"{row['closed_form_ps'] / 1e6:,.3f}",
            f"{row['ratio']:.4f}",
        )
    wide_console().print(shown)
