"""Uplinks of a tier of switches for an oversubscription."""

from fractions import Fraction

from nadi.topologies.errors import TopologyError
from nadi.topologies.parameters import Parameters


def uplink_count(
    arguments: Parameters, name: str, count_key: str, ratio_key: str, down_bps: int, uplink_bps: int
) -> int:
    """Return the number of switches above one: the given count, else that with down_bps = ratio x count x uplink_bps.

    arguments, name: of the topology; count_key, ratio_key: parameters with that number, None = not given, and with the
    oversubscription, None = 1; down_bps: sum of the rates of the switch's links downwards; uplink_bps: rate to each
    switch above. Raises TopologyError: both are given, or the count is not whole; the text names the two keys.
    """
    count: int | None = getattr(arguments, count_key)
    ratio: Fraction | None = getattr(arguments, ratio_key)
    if count is not None and ratio is not None:
        raise TopologyError.at(name, f"both {count_key} and {ratio_key} are given", "one of them")
    if count is not None:
        return count
    needed = down_bps / (ratio or Fraction(1)) / uplink_bps
    if needed.denominator != 1:
        raise TopologyError.at(
            name, f"{ratio_key} = {ratio or 1} needs {float(needed):g} {count_key}", "a whole number"
        )
    return int(needed)
