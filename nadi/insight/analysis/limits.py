"""Links that limited the rates of flows, from the solutions of the flow model (limits.parquet)."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Int64
from nadi.inputs.arrow import numpy_column
from nadi.insight.runs import Run


class LimitingLink(NamedTuple):
    """A link that limited flows for most of their time."""

    link: int  # number of the link
    flows: int  # number of connections, or kinds of coupled collectives, that it limited
    mean_ps: float  # mean of the times for which it did, less those for which it did not, in picoseconds
    groups: str  # names of the groups whose collectives these were, those with the longest times first


def limiting_links(limits: Mapping[str, Int64], name_of_group: Callable[[int], str]) -> list[LimitingLink]:
    """Return the links of `limits` (columns of limits.parquet), those with the longest total times first."""
    links, place = np.unique(limits["link"], return_inverse=True)
    totals_ps = np.bincount(place, limits["limited_ps"], len(links))
    found = []
    for number in np.argsort(-totals_ps, kind="stable").tolist():
        own = np.flatnonzero(place == number)
        groups, group = np.unique(limits["group"][own], return_inverse=True)
        order = np.argsort(-np.bincount(group, limits["limited_ps"][own]), kind="stable")
        names = dict.fromkeys("messages" if each < 0 else name_of_group(each) for each in groups[order].tolist())
        found.append(LimitingLink(int(links[number]), len(own), totals_ps[number] / len(own), ", ".join(names)))
    return found


def limiting_link(run: Run, group: int, src: int, dst: int) -> int | None:
    """Return the link that limited collectives of a group, or messages between NPUs (group -1), for longest.

    None: no link limited them, or the run has another model of the network.
    """
    if run.limits is None:
        return None
    limits = {name: numpy_column(run.limits[name]) for name in run.limits.column_names}
    own = limits["group"] == group
    if group < 0:
        own &= (limits["src"] == src) & (limits["dst"] == dst)
    limited_ps = np.bincount(limits["link"][own], limits["limited_ps"][own])
    return int(limited_ps.argmax()) if len(limited_ps) else None
