"""Collectives over several dimensions, made of algorithms for one: what `grid` and `hierarchical` are built from."""

from workload.grid.extent import extent
from workload.grid.levels import Levels, along_dimensions, by_hosts
from workload.grid.orders import ORDERS, orders
from workload.grid.pipeline import idle_ps
from workload.grid.streams import plans

__all__ = ["ORDERS", "Levels", "along_dimensions", "by_hosts", "extent", "idle_ps", "orders", "plans"]
