"""A world with what the driver needs beside it: where it came from and what has been taken out of it so far."""

from dataclasses import dataclass, field

import numpy as np

from pdes.settings import Settings
from pdes.state import World


@dataclass
class Simulation:
    """A run under way. `world` is replaced when a pool grows."""

    graph: object
    program: object
    settings: Settings
    world: World
    tx_link: np.ndarray
    row_ptr: np.ndarray
    setup_s: float
    flows_out: list[np.ndarray] = field(default_factory=list)
    flows_in: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True)
class Snapshot:
    """How far a run is."""

    now_ps: int
    packet_hops: int
    nodes_done: int
    nodes_total: int
    wall_s: float
