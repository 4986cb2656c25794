"""Speed of exact reuse: a training step with collectives of NVLink domains replayed, and by all of its packets.

Nearly all packets of the step belong to all-reduces of tensor parallelism inside hosts, which have one size. The model
is GPT-3 175B: the members of an all-reduce of its size end so that the next one starts with the same offsets.
"""

from typing import Any

from nadi import pdes
from nadi.configuration.run_file import load_config
from nadi.launching.progress import Progress
from nadi.simulation.resolving import Resolver
from nadi.simulation.run import execute

NAME = "reuse"
MODEL, PLAN, CLUSTER = "gpt3-175b", "tp8,pp2,mb1,gb2", "selene"


def run_reuse_bench(
    progress: Progress, *, model: str = MODEL, plan: str = PLAN, seed: int = 1, runs: int = 5
) -> dict[str, Any]:
    """Run a training step with `reuse` "exact", the fastest of `runs`, then once with "off"; return figures for JSON.

    `packet_hops` are those of the step, `episode_hops` those that were simulated in worlds of their own, and
    `replayed_hops` those that were not simulated in the fabric. Errors: those of `Resolver.plan` and `execute`.

    Args:
        progress: The display of the runs.
        model: The name of a model of the library.
        plan: The parallel plan of the model on as many GPUs of CLUSTER as it needs.
        seed: The seed of the run.
        runs: The number of runs with exact reuse, whose fastest counts.
    """

    def measured(reuse: str) -> pdes.Results:
        progress.begin(f'reuse = "{reuse}"')
        sections: dict[str, dict[str, Any]] = {
            "workload": {"model": model, "plan": plan},
            "topology": {"cluster": CLUSTER},
            "engine": {"reuse": reuse, "seed": seed},
            "output": {"flows": "none"},
        }
        return execute(Resolver(load_config(None, sections=sections)).plan(), progress).results

    exact = min((measured("exact") for _ in range(runs)), key=lambda results: results.wall_s)
    off = measured("off")
    return {
        "bench": NAME,
        "model": model,
        "plan": plan,
        "cluster": CLUSTER,
        "seed": seed,
        "runs": runs,
        "exact_s": exact.wall_s,
        "off_s": off.wall_s,
        "ratio": off.wall_s / exact.wall_s,
        "packet_hops": off.counters["packet_hops"],
        **exact.reuse,
        "finish_time_ps": exact.finish_time_ps,
        "digest": exact.digest,
        "digest_off": off.digest,
        "same_digest": exact.digest == off.digest,
        "peak_rss_bytes": pdes.peak_rss_bytes(),
    }
