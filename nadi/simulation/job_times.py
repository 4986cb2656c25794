"""When each job of a run ends, and when it would end alone on the fabric, or the run without its faults."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

import pdes
from et.arrays import Int64
from nadi.configuration.sections import RunConfig
from nadi.launching.progress import NoProgress, Progress
from nadi.launching.world import RankGather
from workload import Program

if TYPE_CHECKING:
    from nadi.simulation.run import FinishedRun


class _Silence(NoProgress):
    """Progress without output: the run of all jobs has warned already."""

    def warn(self, text: str) -> None:
        """Print nothing."""


def job_finish_ps(program: Program, results: pdes.Results) -> Int64:
    """Return int64[jobs]: the end of the last trace node of each job on this rank's NPUs; 0 where there are none."""
    jobs = program.jobs
    if jobs is None:
        return np.zeros(0, np.int64)
    finish_ps = np.zeros(len(jobs.names), np.int64)
    job_of_npu = jobs.of_npus()
    has_rows = np.flatnonzero(np.diff(results.npu_node_ptr) > 0)
    if len(has_rows):
        of_npu = np.zeros(program.npus, np.int64)
        of_npu[has_rows] = np.maximum.reduceat(results.node_finish_ps, results.npu_node_ptr[has_rows])
        if results.folded is not None:
            of_npu = of_npu[results.folded.like]
        works = job_of_npu >= 0
        np.maximum.at(finish_ps, job_of_npu[works], of_npu[works])
    return finish_ps


def times_alone_ps(
    finished: "FinishedRun",
    simulate: Callable[[RunConfig, NoProgress, RankGather], "FinishedRun"],
    progress: Progress | NoProgress,
    ranks: RankGather,
) -> tuple[int, ...]:
    """Simulate each job of a finished run alone, on the same NPUs, and return the time that each takes in ps."""
    jobs, config = finished.program.jobs, finished.config
    if jobs is None:
        return ()
    sections = [section for section in config.jobs for _ in range(section.repeat)]
    times = []
    for number, (name, section) in enumerate(zip(jobs.names, sections, strict=True)):
        begin_ps = int(jobs.begin_ps[number])
        npus = tuple(jobs.npus_of(number).tolist())
        own = {"name": name, "gpus": len(npus), "placement": npus, "start": f"{begin_ps}ps", "repeat": 1}
        alone = config.model_copy(update={"jobs": (section.model_copy(update=own),)})
        if ranks.rank == 0:
            progress.say(f'job "{name}" alone')
        run = simulate(alone, _Silence(), ranks)
        finish_ps = max(ranks.exchange(int(job_finish_ps(run.program, run.results)[0])))
        times.append(finish_ps - begin_ps)
    return tuple(times)


def without_faults_ps(
    config: RunConfig,
    simulate: Callable[[RunConfig, NoProgress, RankGather], "FinishedRun"],
    progress: Progress | NoProgress,
    ranks: RankGather,
) -> int:
    """Simulate a configuration without its faults, and return when that run ends, in picoseconds."""
    if ranks.rank == 0:
        progress.say("the same run without its faults")
    return simulate(config.model_copy(update={"faults": ()}), _Silence(), ranks).results.finish_time_ps
