"""The results so far of a run that is not over, written after each checkpoint."""

import time
from collections.abc import Callable

from nadi.insight.run_analysis import ClosedFormKey, analyse_rank, merge_ranks
from nadi.launching.checkpoints import CheckpointFolder
from nadi.launching.world import RankGather, together
from nadi.reports.result_files.run_folder import write_results
from nadi.simulation.closed_forms.collective import ClosedForm
from nadi.simulation.run_plan import FinishedRun

# Maximum share of the wall time that partial results take: checkpoints that follow too soon have none
MAX_SHARE = 0.01


class PartialResults:
    """Writer of the results so far of a run into the folder of its checkpoints."""

    def __init__(self, checkpoints: CheckpointFolder, say: Callable[[str], None]) -> None:
        """Take where results go; say: function that prints one line."""
        self._checkpoints, self._say = checkpoints, say
        self.closed_forms: dict[ClosedFormKey, ClosedForm] = {}  # those of this rank, for later analyses of this run
        self._due_s = 0.0  # time of the monotonic clock from which results may be written

    def write(self, simulation: FinishedRun, ranks: RankGather) -> None:
        """Write the results of a run that is not over; all ranks call this. A failure only prints a line."""
        begun_s = time.monotonic()
        if not ranks.exchange(begun_s >= self._due_s)[0]:
            return
        try:
            with together(ranks):
                parts = ranks.gather(analyse_rank(simulation, ranks.exchange, self.closed_forms))
                findings = merge_ranks(simulation, parts) if parts is not None else None
                write_results(simulation, findings, self._checkpoints.new_partial() if findings else None, ranks)
                if findings:
                    self._checkpoints.keep_partial()
        except Exception as error:  # noqa: BLE001 - a run of hours does not end because of results that it writes again
            said = f"no partial results could be written: {error}"
        else:
            said = f"partial results: written in {time.monotonic() - begun_s:.1f} s"
        now_s = time.monotonic()
        # so that writing takes at most MAX_SHARE of the time
        self._due_s = now_s + (now_s - begun_s) / MAX_SHARE
        if ranks.rank == 0:
            self._say(said)
