"""`nadi htsim`: run htsim's and ATLAHS's files unchanged, with the options of htsim_uec."""

from pathlib import Path

import typer

from nadi.cli.options import named_path
from nadi.configuration import MAX_SEED
from nadi.importers import TranslatedRun

_TRAFFIC = "Connection matrix (.cm)."
_GOAL = "GOAL schedule, text or binary, in place of a matrix."
_TOPOLOGY = "Tree (.topo), or any SPEC of `nadi topology`. Default: a tree of -tiers."
_NODES = "Number of nodes. Default: those of the traffic."
_CONTROL = "nscc, dctcp or constant."
_STRATEGY = "Routing: ecmp_host, ecmp_ar, ecmp_host_ar or ecmp_rr."
_BALANCING = "Choice of paths by senders: mixed, bitmap, reps, oblivious, ecmp, ..."
_FAILED = "Upper switches of a tree of two tiers whose links have a quarter of their rate."
_PLAIN = "Receivers' credits alone do not slow down for an oversubscribed tree."
_SACK = "Data after which a receiver acknowledges, if nothing asks for it at once."
_END = "Accepted; the run ends when all flows are done."
_MAX = 1 << 22  # maximum of numbers of packets and nodes


def read(
    traffic: Path | None = typer.Option(None, "-tm", metavar="FILE", parser=named_path, help=_TRAFFIC),
    goal: Path | None = typer.Option(None, "-goal", metavar="FILE", parser=named_path, help=_GOAL),
    topology: str = typer.Option("", "-topo", metavar="FILE", show_default=False, help=_TOPOLOGY),
    nodes: int | None = typer.Option(None, "-nodes", min=2, max=_MAX, metavar="N", show_default=False, help=_NODES),
    tiers: int = typer.Option(3, "-tiers", min=2, max=3, metavar="N", help="Tiers of a tree without -topo."),
    linkspeed: float = typer.Option(100_000, "-linkspeed", min=1, max=1e9, metavar="MBPS", help="Rate without -topo."),
    hop_latency: float = typer.Option(1, "-hop_latency", min=0, max=1e6, metavar="US", help="Latency of a link."),
    switch_latency: float = typer.Option(0, "-switch_latency", min=0, max=1e6, metavar="US", help="Of a switch."),
    mtu: int = typer.Option(4150, "-mtu", min=65, max=65_599, metavar="BYTES", help="Full packet with its header."),
    queue: int | None = typer.Option(None, "-q", min=1, max=100_000, metavar="PACKETS", help="Queue of a port."),
    ecn: tuple[int, int] | None = typer.Option(None, "-ecn", metavar="LOW HIGH", help="Thresholds in packets."),
    cwnd: int | None = typer.Option(None, "-cwnd", min=1, max=_MAX, metavar="PACKETS", help="Maximum window."),
    paths: int = typer.Option(64, "-paths", min=1, max=_MAX, metavar="N", help="Paths of a flow; 1 = no spraying."),
    control: str = typer.Option("nscc", "-sender_cc_algo", metavar="NAME", help=_CONTROL),
    strategy: str = typer.Option("ecmp_host", "-strat", metavar="NAME", help=_STRATEGY),
    balancing: str = typer.Option("mixed", "-load_balancing_algo", metavar="NAME", help=_BALANCING),
    target: float = typer.Option(0, "-target_q_delay", min=0, max=1e6, metavar="US", help="Target of nscc."),
    no_trimming: bool = typer.Option(False, "-disable_trim", help="Drop packets instead of trimming them."),
    random_seed: int = typer.Option(13, "-seed", min=0, max=MAX_SEED, metavar="N", help="Seed of random choices."),
    sack: int = typer.Option(16_384, "-sack_threshold", min=0, max=1 << 30, metavar="BYTES", help=_SACK),
    failed: int = typer.Option(0, "-failed", min=0, max=_MAX, metavar="N", help=_FAILED),
    end: float | None = typer.Option(None, "-end", metavar="US", show_default=False, help=_END),
    sender_only: bool = typer.Option(False, "-sender_cc_only", help="Senders alone control; the default."),
    receiver: bool = typer.Option(False, "-receiver_cc", help="Receivers give credits, beside -sender_cc_algo."),
    receiver_only: bool = typer.Option(False, "-receiver_cc_only", help="Receivers alone control, by credits."),
    plain: bool = typer.Option(False, "-force_disable_oversubscribed_cc", help=_PLAIN),
) -> TranslatedRun:
    """Run files of htsim and ATLAHS unchanged: a connection matrix or GOAL schedule on a tree, packet by packet."""
    del end
    if sender_only and (receiver or receiver_only):
        expected = "found beside -receiver_cc or -receiver_cc_only; expected one of them"
        raise typer.BadParameter(expected, param_hint="-sender_cc_only")
    from nadi.importers.htsim import HtsimOptions, print_spread, translated

    options = HtsimOptions(
        *(traffic, goal, topology, nodes or 0, tiers, linkspeed, hop_latency, switch_latency, mtu, queue or 0, ecn),
        *(cwnd or 0, paths, control, strategy, balancing, target, not no_trimming, random_seed),
        *(not receiver_only, receiver or receiver_only, not plain, sack, failed),
    )
    return translated(options)._replace(before_report=None if traffic is None else print_spread)
