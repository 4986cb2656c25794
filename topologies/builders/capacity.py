"""Capacities: uplinks of a tier of switches for an oversubscription, and a GPU's share of the NICs of its server."""

from fractions import Fraction

from topologies.errors import TopologyError


def check_nics(name: str, gpus_per_host: int, nics_per_host: int) -> None:
    """Refuse NICs that the GPUs of a server cannot share evenly.

    Raises TopologyError: the number of GPUs is no multiple of the number of NICs.
    """
    if gpus_per_host % nics_per_host:
        raise TopologyError(
            f"{name}: gpus_per_host = {gpus_per_host}; expected a multiple of nics_per_host = {nics_per_host}"
        )


def share_of_nic(rate_bps: int, gpus_per_host: int, nics_per_host: int) -> int:
    """Return a GPU's share of its NIC's rate in bits per second, with the NICs of a server shared evenly."""
    return rate_bps * nics_per_host // gpus_per_host


def uplink_count(
    name: str, count_key: str, count: int | None, ratio_key: str, ratio: Fraction | None, down_bps: int, uplink_bps: int
) -> int:
    """Return the number of switches above one: count if given, else that with down_bps = ratio x count x uplink_bps.

    Args:
        name: Name of the topology, for errors.
        count_key: Parameter of the topology that gives `count`.
        count: Number of switches above; None = not given.
        ratio_key: Parameter of the topology that gives `ratio`.
        ratio: Oversubscription; None = 1.
        down_bps: Sum of the rates of the switch's links downwards.
        uplink_bps: Rate to each switch above.

    Raises:
        TopologyError: Both are given, or the count is not whole; the text names the two keys.
    """
    if count is not None and ratio is not None:
        raise TopologyError(f"{name}: both {count_key} and {ratio_key} are given; expected one of them")
    if count is not None:
        return count
    needed = down_bps / (ratio or Fraction(1)) / uplink_bps
    if needed.denominator != 1:
        raise TopologyError(
            f"{name}: {ratio_key} = {ratio or 1} needs {float(needed):g} {count_key}; expected a whole number"
        )
    return int(needed)
