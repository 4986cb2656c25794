"""Run by mpiexec: `nadi` with a run that ends at the first cut after a time, the same on any workers.

Arguments: the time in picoseconds; those of `nadi`.
"""

import sys
from contextlib import contextmanager
from unittest import mock

from nadi.cli.main import main
from nadi.pdes import workers
from nadi.pdes.checkpoint.saver import Saver
from nadi.pdes.parallel import NO_SNAPSHOT, SAVE, SAVE_AND_END


@contextmanager
def cut_at(*times_ps, last=SAVE_AND_END):
    """Let runs save their state at a cut soon after each time, and end at the last: each window ends with a cut."""
    left = sorted(times_ps)

    def wanted(saver):
        is_by_message = saver._sim.settings.fidelity.hooks.act is not None
        begin_ps = saver._place.team.workers[saver._place.first].begin_ps
        now_ps = saver._sim.lps[0].world.net.ctl.now_ps if is_by_message else begin_ps
        if not (saver._is_first and left and now_ps >= left[0]):
            return NO_SNAPSHOT
        left[:] = [time_ps for time_ps in left if time_ps > now_ps]
        return SAVE if left else last

    with (
        mock.patch.object(Saver, "wanted", wanted),
        mock.patch.multiple(workers, WINDOWS_OF_A_PAUSE=0, EVENTS_OF_A_PAUSE=20),
    ):
        yield


if __name__ == "__main__":
    with cut_at(int(sys.argv[1])):
        sys.exit(main(sys.argv[2:]))
