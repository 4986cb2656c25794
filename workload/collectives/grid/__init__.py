"""Collectives over several dimensions, composed of algorithms for one: the basis of `grid` and `hierarchical`."""

from nadi.workload.collectives.grid.phases import (
    ORDERS,
    Levels,
    along_dimensions,
    by_hosts,
    idle_ps,
    in_a_line,
    ordered_kind,
    orders,
)
from nadi.workload.collectives.grid.streams import extent, plans
