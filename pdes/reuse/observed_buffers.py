"""What shared buffers count for the user, and what it is after periods that are counted and not simulated."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from nadi.pdes.core import Int64, state as s
from nadi.pdes.core.declared import WATCHED, widen

COUNTED = ("marked_packets", "pause_frames", "trimmed_packets", "paused_ps")  # words of gates to which a period adds


@dataclass(frozen=True, eq=False)
class ObservedBuffers:
    """What the shared buffers of a logical process had counted when the note of a period began."""

    counts: dict[str, Int64]  # words of COUNTED by port
    columns: dict[str, Any]  # int32[links, columns] by array of WATCHED
    column_ps: int  # width of a column in ps
    pauses: int  # pauses and resumes

    @classmethod
    def of(cls, world: s.World) -> Self:
        """Return what a logical process has counted.

        Args:
            world: State of the LP (`World`).
        """
        net = world.net
        gate: Any = net.gate
        counts = {name: gate[name].copy() for name in COUNTED}
        columns = {name: _columns_of(world, name).copy() for name in WATCHED}
        return cls(counts, columns, int(net.ctl.depth_ps), int(net.ctl.pauses))

    def repeat(self, world: s.World, repeated: int, length_ps: int) -> None:
        """Add to a logical process what the noted period, which ends now, adds in each of its repetitions; once only.

        Queues and marks over time are those of the noted period, moved to the nearest column.

        Args:
            world: State of the LP (`World`), which the function changes.
            repeated: Number of repetitions.
            length_ps: Length of a period in ps.
        """
        net = world.net
        gate: Any = net.gate
        for name, counted in self.counts.items():
            gate[name] += repeated * (gate[name] - counted)
        self._repeat_pauses(net, repeated, length_ps)
        if not int(net.const.depths):
            return
        shift_ps = repeated * length_ps
        for name, before in self.columns.items():
            widen(before, int(net.ctl.depth_ps) // self.column_ps, WATCHED[name])
        # widths of columns double until the last repetition has a column
        last = max(int(np.flatnonzero(_columns_of(world, name).any(axis=0)).max(initial=0)) for name in WATCHED)
        while last + round(shift_ps / int(net.ctl.depth_ps)) + 1 >= int(net.const.depths):
            for name, join in WATCHED.items():
                widen(_columns_of(world, name), 2, join)
                widen(self.columns[name], 2, join)
            net.ctl.depth_ps *= 2
            last //= 2
        for name, join in WATCHED.items():
            columns = _columns_of(world, name)
            # of a sum what was added, of a maximum what has risen
            more = (
                columns - self.columns[name] if join is np.add else np.where(columns > self.columns[name], columns, 0)
            )
            used = np.flatnonzero(more.any(axis=0))
            if not len(used):
                continue
            first, end = int(used[0]), int(used[-1]) + 1
            for turn in range(1, repeated + 1):
                at = round(turn * length_ps / int(net.ctl.depth_ps))
                into = columns[:, first + at : end + at]
                join(into, more[:, first:end], out=into)

    def _repeat_pauses(self, net: s.Net, repeated: int, length_ps: int) -> None:
        """Log the pauses of the noted period again for each repetition, as far as the log has room, and count them."""
        first, end = self.pauses, int(net.ctl.pauses)
        log = net.pause_log[: len(net.pause_log) // 2 * 2].reshape(-1, 2)
        noted = log[first:end]
        for turn in range(1, repeated + 1):
            at = first + turn * (end - first)
            room = log[at : at + len(noted)]
            room[:] = noted[: len(room)]
            room[:, 0] += turn * length_ps
        net.ctl.pauses += repeated * (end - first)


def _columns_of(world: s.World, name: str) -> Any:
    """Return an array of WATCHED as int32[links, columns]; without columns where a run does not have it."""
    net = world.net
    array, columns = getattr(net, name), int(net.const.depths)
    if columns == 0 or len(array) < columns:
        return np.zeros((0, columns), np.int32)
    return array[: len(array) // columns * columns].reshape(-1, columns)
