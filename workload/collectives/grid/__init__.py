"""Collectives over several dimensions, composed of algorithms for one: the basis of `grid` and `hierarchical`."""

from nadi.workload.collectives.grid.levels import Levels, along_dimensions, by_hosts, in_a_line
from nadi.workload.collectives.grid.phases import ORDERS, idle_ps, ordered_kind, orders
from nadi.workload.collectives.grid.streams import extent, plans
