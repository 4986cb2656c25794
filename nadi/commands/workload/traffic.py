"""`nadi workload traffic`: traces of messages without a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.options import FORCE_HELP, named_path

if TYPE_CHECKING:
    from workload.point_to_point.traces import Messages

Out = Annotated[Path, typer.Option("-o", "--out", metavar="DIR", parser=named_path, help="Folder for the traces.")]
Prefix = Annotated[str, typer.Option(help="Beginning of the files' names: PREFIX.<npu>.et.")]
Npus = Annotated[int, typer.Option(help="NPUs that take part.")]
Size = Annotated[str, typer.Option(help="Of messages: 1MiB, uniform:64KiB-1MiB, web-search or hadoop.")]
Rounds = Annotated[int, typer.Option(min=1, help="So many messages to each receiver, one after another.")]
Seed = Annotated[int, typer.Option(min=0, help="Of what is drawn by chance.")]
First = Annotated[int, typer.Option(min=0, help="Number of the first NPU; traces of lower ones may lie in DIR.")]
Force = Annotated[bool, typer.Option("--force", help=FORCE_HELP)]

_PREFIX = "traffic"
_SIZE = "1MiB"


def add_to(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Make traces of messages without a model.")
    for command in (incast, permutation, pairs, poisson, all_to_all):
        group.command()(command)
    app.add_typer(group, name="traffic")


def incast(
    out: Out,
    prefix: Prefix = _PREFIX,
    npus: Npus = 8,
    fan_in: Annotated[int | None, typer.Option(help="Senders; without, all others.", show_default=False)] = None,
    receiver: Annotated[int, typer.Option(help="Which NPU they send to.")] = 0,
    size: Size = _SIZE,
    messages: Rounds = 1,
    seed: Seed = 1,
    first_npu: First = 0,
    force: Force = False,
) -> None:
    """Many NPUs send to one."""
    from workload.point_to_point import traces as traffic_traces
    from workload.point_to_point.message_sizes import message_sizes

    senders = npus - 1 if fan_in is None else fan_in
    made = traffic_traces.incast(npus, senders, messages, message_sizes(size), seed, receiver)
    _write(made, out, prefix, first_npu, force=force)


def permutation(
    out: Out,
    prefix: Prefix = _PREFIX,
    npus: Npus = 8,
    size: Size = _SIZE,
    messages: Rounds = 1,
    seed: Seed = 1,
    first_npu: First = 0,
    force: Force = False,
) -> None:
    """Each NPU sends to one other, chosen by chance, and receives from one."""
    from workload.point_to_point import traces as traffic_traces
    from workload.point_to_point.message_sizes import message_sizes

    made = traffic_traces.permutation(npus, messages, message_sizes(size), seed)
    _write(made, out, prefix, first_npu, force=force)


def pairs(
    out: Out,
    prefix: Prefix = _PREFIX,
    npus: Npus = 8,
    stride: Annotated[int | None, typer.Option(help="Without, half of the NPUs.", show_default=False)] = None,
    size: Size = _SIZE,
    messages: Rounds = 1,
    seed: Seed = 1,
    first_npu: First = 0,
    force: Force = False,
) -> None:
    """NPUs i and i + stride send to each other."""
    from workload.point_to_point import traces as traffic_traces
    from workload.point_to_point.message_sizes import message_sizes

    made = traffic_traces.pairs(npus, npus // 2 if stride is None else stride, messages, message_sizes(size), seed)
    _write(made, out, prefix, first_npu, force=force)


def all_to_all(
    out: Out,
    prefix: Prefix = _PREFIX,
    npus: Npus = 8,
    size: Size = _SIZE,
    messages: Rounds = 1,
    seed: Seed = 1,
    first_npu: First = 0,
    force: Force = False,
) -> None:
    """Each NPU sends to all others, the next one first, one after another."""
    from workload.point_to_point import traces as traffic_traces
    from workload.point_to_point.message_sizes import message_sizes

    made = traffic_traces.all_to_all(npus, messages, message_sizes(size), seed)
    _write(made, out, prefix, first_npu, force=force)


def poisson(
    out: Out,
    prefix: Prefix = _PREFIX,
    npus: Npus = 8,
    load: Annotated[float, typer.Option(help="Share of the rate that each NPU offers to send.")] = 0.5,
    rate: Annotated[str, typer.Option(help="Of an NPU's link.")] = "400Gbps",
    duration: Annotated[str, typer.Option(help="Messages arrive for so long.")] = "1ms",
    size: Size = _SIZE,
    seed: Seed = 1,
    first_npu: First = 0,
    force: Force = False,
) -> None:
    """Messages to any other NPU, at moments of a Poisson process: background traffic."""
    from topologies.bounds import LONGEST_PS, MEMORY_RATE_BPS
    from topologies.units import parse_rate_within, parse_time_within
    from workload.point_to_point import traces as traffic_traces
    from workload.point_to_point.message_sizes import message_sizes

    rate_bps, duration_ps = parse_rate_within(rate, MEMORY_RATE_BPS), parse_time_within(duration, LONGEST_PS)
    made = traffic_traces.poisson(npus, load, rate_bps, duration_ps, message_sizes(size), seed)
    offered = made.bytes.sum() * 8e12 / (npus * rate_bps * duration_ps)
    _write(made, out, prefix, first_npu, f", {offered:.3g} of {npus} x {rate} in {duration}", force=force)


def _write(made: "Messages", out: Path, prefix: str, first_npu: int, more: str = "", *, force: bool) -> None:
    from nadi.terminal.printing import say
    from nadi.terminal.readable import amount_text
    from nadi.wiring.affordable import check_trace
    from workload.point_to_point.traces import write

    check_trace(made.nodes, fewer="NPUs or messages", force=force)
    files = write(made, out, prefix, first_npu)
    amount = amount_text(float(made.bytes.sum()))
    say(f"{out / prefix}.<npu>.et: {files} traces, {len(made.src):,} messages, {amount}{more}")
