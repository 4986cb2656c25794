"""Results of each job of a run: its times and throughput, what it lost to other jobs, and the links it shares."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from nadi.inputs.arrays import Int32, Int64
from nadi.insight.analysis import training_step as step
from nadi.simulation.run import FinishedRun
from nadi.workload.program import FabricJobs

MIN_SHARE = 0.01  # part of a link's bytes below which a job counts as not using it: acknowledgements of other traffic
MAX_SHARED = 8  # other jobs that results list for each job, those with the most bytes on shared links first


def documents(simulation: FinishedRun, finish_ps: Int64, step_times: Int64 | None) -> list[dict[str, Any]]:
    """Return the table `jobs` of summary.json, one entry for each job.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        finish_ps: int64[jobs], end of each job in ps.
        step_times: int64[npus, categories], time of each NPU by axis in ps; None = no name has an axis.
    """
    jobs = simulation.program.jobs
    if jobs is None:
        return []
    found = []
    for number, (name, job) in enumerate(zip(jobs.names, simulation.jobs, strict=True)):
        begin_ps, end_ps = int(jobs.begin_ps[number]), int(finish_ps[number])
        npus = jobs.npus_of(number)
        entry: dict[str, Any] = {
            "name": name,
            "npus": len(npus),
            "start_ps": begin_ps,
            "finish_ps": end_ps,
            "time_ps": end_ps - begin_ps,
            "digest": simulation.results.job_digests[number],
        }
        if simulation.settings.job_slowdowns:
            entry["compute_slowdown"] = simulation.settings.job_slowdowns[number]
        # the same run as if it had this job only, for the figures of a step
        own = replace(
            simulation,
            training=job.training,
            results=replace(simulation.results, finish_time_ps=end_ps - begin_ps),
        )
        times = _own_times(simulation, step_times, npus, end_ps - begin_ps)
        entry["step"] = {} if job.is_traffic else step.document(own, times)
        if simulation.alone_ps:
            entry["alone_ps"] = simulation.alone_ps[number]
            if entry["alone_ps"]:
                entry["slowdown"] = entry["time_ps"] / entry["alone_ps"]
        entry["shares"] = list(_shares(simulation, jobs, number, finish_ps))[:MAX_SHARED]
        found.append(entry)
    return found


def _own_times(simulation: FinishedRun, step_times: Int64 | None, npus: Int32, time_ps: int) -> Int64 | None:
    """Return the times by axis of a job's NPUs, which are idle only from the job's start to its end."""
    if step_times is None:
        return None
    own = step_times[npus].copy()
    own[:, step.CATEGORIES.index("idle")] -= simulation.results.finish_time_ps - time_ps
    return np.maximum(own, 0)


def _shares(simulation: FinishedRun, jobs: FabricJobs, number: int, finish_ps: Int64) -> Iterator[dict[str, Any]]:
    """Yield the other jobs that run at the same time and use the same links, those with the most bytes there first."""
    sent = simulation.results.job_bytes
    if not sent.size:
        return
    total = np.maximum(sent.sum(axis=1), 1)
    # a few bytes on a link do not slow others down
    uses = sent >= MIN_SHARE * total[:, None]
    uses &= sent > 0
    own = uses[:, number]
    overlaps = (jobs.begin_ps < finish_ps[number]) & (finish_ps > jobs.begin_ps[number])
    overlaps[number] = False
    others = [(other, np.flatnonzero(own & uses[:, other])) for other in np.flatnonzero(overlaps).tolist()]
    others.sort(key=lambda each: -int(sent[each[1], each[0]].sum()))
    for other, links in others:
        if len(links):
            # the link on which both send much
            busiest = int(links[np.argmax(np.minimum(sent[links, number], sent[links, other]))])
            graph = simulation.graph
            ends = graph.node_name(int(graph.link_src[busiest])), graph.node_name(int(graph.link_dst[busiest]))
            yield {
                "job": jobs.names[other],
                "links": len(links),
                "bytes": int(sent[links, number].sum()),
                "other_bytes": int(sent[links, other].sum()),
                "link": busiest,
                "link_name": " → ".join(ends),
            }
