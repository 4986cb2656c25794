"""Kernels find the world of a logical process by one address."""

from pdes.jit import reader
from pdes.state import World

world_at = reader(World)
