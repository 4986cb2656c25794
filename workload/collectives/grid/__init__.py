"""Collectives over several dimensions, composed of algorithms for one: the basis of `grid` and `hierarchical`."""

from workload.collectives.grid.extent import extent
from workload.collectives.grid.levels import Levels, along_dimensions, by_hosts
from workload.collectives.grid.orders import ORDERS, orders
from workload.collectives.grid.pipeline import idle_ps
from workload.collectives.grid.streams import plans

__all__ = ["ORDERS", "Levels", "along_dimensions", "by_hosts", "extent", "idle_ps", "orders", "plans"]
