"""`nadi workload traffic`: generate traces of messages without a model.

A pattern below is a function from options to messages; `_command` turns it into a command that writes their traces.
"""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.options import Force, TracesOut
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.terminal import say

if TYPE_CHECKING:
    from nadi.workload.generators.point_to_point import MessageSequence, Sizes

    Traffic = tuple[MessageSequence, str]  # messages, and a text for the result line

_SIZE = "1MiB"
_STRIDE = "Distance of the NPUs of a pair. Default: half of the NPUs."

Prefix = Annotated[str, typer.Option(help="Prefix of the file names PREFIX.<npu>.et.")]
Npus = Annotated[int, typer.Option(help="Number of NPUs.")]
_SIZES = "Size of messages: 1MiB, uniform:64KiB-1MiB, web-search, hadoop, storage, data-mining, or FILE: BYTES PERCENT."
Size = Annotated[str, typer.Option(help=_SIZES)]
Rounds = Annotated[int, typer.Option(min=1, help="Number of consecutive messages to each receiver.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of random choices.")]
First = Annotated[int, typer.Option(min=0, help="Number of the first NPU; DIR may contain traces of lower ones.")]
FanIn = Annotated[int | None, typer.Option(help="Number of senders. Default: all other NPUs.", show_default=False)]
Receiver = Annotated[int, typer.Option(help="NPU that receives.")]
Stride = Annotated[int | None, typer.Option(help=_STRIDE, show_default=False)]
Load = Annotated[float, typer.Option(help="Offered load of each NPU as a share of its rate.")]
Rate = Annotated[str, typer.Option(help="Rate of an NPU's link.")]
Duration = Annotated[str, typer.Option(help="Time span in which messages arrive.")]
_SIGMA = "Shape of the lognormal distribution of the gaps between messages: 1 is bursty, 2 very bursty."
Sigma = Annotated[float, typer.Option(help=_SIGMA)]


def add_to(app: typer.Typer) -> None:
    """Add the group of commands to the application.

    Args:
        app: The application of typer.
    """
    group = typer.Typer(help="Generate traces of messages without a model.")
    for pattern in (incast, permutation, pairs, poisson, bursty, all_to_all):
        group.command()(_command(pattern))
    app.add_typer(group, name="traffic")


def incast(
    npus: Npus = 8,
    fan_in: FanIn = None,
    receiver: Receiver = 0,
    size: Size = _SIZE,
    messages: Rounds = 1,
    seed: Seed = 1,
) -> "Traffic":
    """Generate incast: many NPUs send to one."""
    from nadi.workload.generators import point_to_point

    senders = npus - 1 if fan_in is None else fan_in
    return point_to_point.incast(npus, senders, messages, _sizes(size), seed, receiver), ""


def permutation(npus: Npus = 8, size: Size = _SIZE, messages: Rounds = 1, seed: Seed = 1) -> "Traffic":
    """Generate a permutation: each NPU sends to one random NPU and receives from one."""
    # Returns the traces, and a note for the user, "" = none.
    from nadi.workload.generators import point_to_point

    return point_to_point.permutation(npus, messages, _sizes(size), seed), ""


def pairs(npus: Npus = 8, stride: Stride = None, size: Size = _SIZE, messages: Rounds = 1, seed: Seed = 1) -> "Traffic":
    """Generate pairs: NPUs i and i + stride send to each other."""
    from nadi.workload.generators import point_to_point

    return point_to_point.pairs(npus, npus // 2 if stride is None else stride, messages, _sizes(size), seed), ""


def all_to_all(npus: Npus = 8, size: Size = _SIZE, messages: Rounds = 1, seed: Seed = 1) -> "Traffic":
    """Generate an all-to-all: each NPU sends to all others sequentially, the next NPU first."""
    from nadi.workload.generators import point_to_point

    return point_to_point.all_to_all(npus, messages, _sizes(size), seed), ""


def poisson(
    npus: Npus = 8,
    load: Load = 0.5,
    rate: Rate = "400Gbps",
    duration: Duration = "1ms",
    size: Size = _SIZE,
    seed: Seed = 1,
) -> "Traffic":
    """Generate background traffic: messages to random NPUs at the times of a Poisson process."""
    return _random("poisson", npus, load, rate, duration, size, seed)


def bursty(
    npus: Npus = 8,
    load: Load = 0.5,
    rate: Rate = "400Gbps",
    duration: Duration = "1ms",
    sigma: Sigma = 2.0,
    size: Size = _SIZE,
    seed: Seed = 1,
) -> "Traffic":
    """Generate background traffic in bursts: messages to random NPUs, with gaps of a lognormal distribution."""
    return _random(f"lognormal:sigma={sigma:g}", npus, load, rate, duration, size, seed)


def _random(process: str, npus: int, load: float, rate: str, duration: str, size: str, seed: int) -> "Traffic":
    """Return messages to random NPUs at the times of an arrival process, and the load that they offer."""
    from nadi.inputs.limits import LONGEST_PS, MEMORY_RATE_BPS
    from nadi.inputs.units import parse_rate_within, parse_time_within
    from nadi.workload.generators import point_to_point

    rate_bps, duration_ps = parse_rate_within(rate, MEMORY_RATE_BPS), parse_time_within(duration, LONGEST_PS)
    times = point_to_point.arrivals(process)
    made = point_to_point.random_messages(npus, load, rate_bps, duration_ps, _sizes(size), seed, times)
    offered = made.bytes.sum() * PS_PER_BYTE_AT_1_BPS / (npus * rate_bps * duration_ps)
    return made, f", {offered:.3g} of {npus} x {rate} in {duration}"


def _sizes(text: str) -> "Sizes":
    """Parse the distribution of message sizes that an option gives."""
    from nadi.workload.generators.point_to_point import message_sizes

    return message_sizes(text)


def _command(pattern: Callable[..., "Traffic"]) -> Callable[..., None]:
    """Return a command with a pattern's options and the options of the files."""

    def command(
        out: TracesOut, prefix: Prefix = "traffic", first_npu: First = 0, force: Force = False, **own: object
    ) -> None:
        made, more = pattern(**own)
        from nadi.simulation.assembly.resource_checks import check_trace
        from nadi.terminal import amount_text
        from nadi.workload.generators.point_to_point import NODE_BYTES, write

        check_trace(made.nodes, fewer="NPUs or messages", node_bytes=NODE_BYTES, force=force)
        files = write(made, out, prefix, first_npu)
        amount = amount_text(float(made.bytes.sum()))
        say(f"{out / prefix}.<npu>.et: {files} traces, {len(made.src):,} messages, {amount}{more}")

    of_files = inspect.signature(command).parameters
    before, after = [of_files[name] for name in ("out", "prefix")], [of_files[name] for name in ("first_npu", "force")]
    options = [*before, *inspect.signature(pattern).parameters.values(), *after]
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # what typer reads
    command.__annotations__ = {option.name: option.annotation for option in options}
    command.__name__, command.__doc__ = pattern.__name__, pattern.__doc__
    return command
