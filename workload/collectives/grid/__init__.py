"""Collectives over several dimensions, made of algorithms for one: what `grid` and `hierarchical` are built from."""

from workload.collectives.grid.extent import extent
from workload.collectives.grid.levels import Levels, along_dimensions, by_hosts
from workload.collectives.grid.orders import ORDERS, orders
from workload.collectives.grid.pipeline import idle_ps
from workload.collectives.grid.streams import plans

__all__ = ["ORDERS", "Levels", "along_dimensions", "by_hosts", "extent", "idle_ps", "orders", "plans"]
