"""Speed-up of two workers on this machine, measured in one session: `nadi bench NAME --scaling`.

`capacity` is the rate of two independent serial runs side by side over the rate of one; shared caches, memory and turbo
clocks keep it below two. The pair ends when its slower run ends, as a parallel run does. Each configuration runs in its
own processes, several turns after each other. Its metric is that of its fastest round over all turns, as everywhere in
`nadi bench`: other load only slows a round down, and slows two workers that synchronise in every window more than two
independent runs. The metrics of each turn are reported too.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from nadi.errors import ConfigError
from nadi.launching.installation import nadi_command
from nadi.launching.progress import NoProgress, Progress
from nadi.pdes import RunError

TIMEOUT_S = 600  # maximum wall time in seconds of one configuration in one turn
TURNS = 3  # number of times that every configuration is measured
MPIEXEC = Path(sys.executable).parent / "mpiexec"


def measure_pairs(
    benchmark: str, progress: Progress | NoProgress, *, topology: str = "", size: str = "", runs: int = 5
) -> dict[str, Any]:
    """Measure one serial run, two side by side, one and two MPI ranks, two that send messages, processes, threads.

    `topology` and `size` replace the benchmark's unless ""; each process does `runs` runs. The result has `capacity`
    and `rows`: workers, packet_hops_per_s, of_turns (the rate in each turn), speed_up over serial, share of capacity,
    waiting (minimum share of the workers' time spent waiting, over all rounds); and the digest. A failed run, or two
    digests, is a RunError; a Python installation without mpiexec a ConfigError.

    Args:
        benchmark: The name of the benchmark.
        topology: The topology; "" means that of the benchmark.
        size: The size of messages or buffers as text; "" means that of the benchmark.
        runs: The number of rounds.
        progress: The display that names the current measurement.
    """
    if not MPIEXEC.exists():
        raise ConfigError(f"{MPIEXEC}: not found; expected mpiexec in Python's folder, pip install mpi4py mpich")
    nadi = nadi_command(["bench", benchmark, "--json", "--quiet", "--runs", str(runs)])
    nadi += ["--topology", topology] * bool(topology) + ["--size", size] * bool(size)
    configurations = {
        "serial": [nadi],
        "2 serial side by side": [nadi, nadi],
        "1 MPI rank": [[str(MPIEXEC), "-n", "1", *nadi]],
        "2 MPI ranks": [[str(MPIEXEC), "-n", "2", *nadi]],
        "2 MPI ranks, by messages": [[str(MPIEXEC), "-n", "2", *nadi, "--no-share-memory"]],
        "2 processes": [[*nadi, "--workers", "2", "--backend", "processes"]],
        "2 threads": [[*nadi, "--workers", "2", "--backend", "threads"]],
    }
    rates: dict[str, list[float]] = {configuration: [] for configuration in configurations}
    waiting = dict.fromkeys(configurations, 1.0)
    digests = set()
    # all configurations in each turn: a machine that becomes slower, as by heat, slows all of them
    for turn in range(TURNS):
        for configuration, commands in configurations.items():
            progress.say(f"turn {turn + 1} of {TURNS}: {configuration}")
            metrics = run_side_by_side(commands)
            rates[configuration].append(joint_rate(metrics))
            waiting[configuration] = min(waiting[configuration], *metrics[0]["waiting_shares"])
            digests |= {run["digest"] for run in metrics}
    if len(digests) > 1:
        raise RunError(f"bench {benchmark}: configurations gave {len(digests)} different digests")
    serial = max(rates["serial"])
    # two runs that share nothing but caches and memory: the most that two workers of one run can reach
    capacity = max(rates["2 serial side by side"]) / serial
    rows = [
        {
            "workers": configuration,
            "packet_hops_per_s": max(turn_rates),
            "of_turns": turn_rates,
            "speed_up": max(turn_rates) / serial,
            "share": max(turn_rates) / serial / capacity,
            "waiting": waiting[configuration],
        }
        for configuration, turn_rates in rates.items()
    ]
    return {"bench": benchmark, "capacity": capacity, "turns": TURNS, "digest": digests.pop(), "rows": rows}


def joint_rate(metrics: list[dict[str, Any]]) -> float:
    """Return packet-hops per second of runs side by side, in the best round; a round ends when its slowest run ends.

    Args:
        metrics: Metrics of the runs side by side, as `nadi bench --json` prints them.
    """
    rounds = zip(*(each["walls_s"] for each in metrics), strict=True)
    return max(sum(each["packet_hops"] for each in metrics) / max(walls) for walls in rounds)


def run_side_by_side(commands: list[list[str]]) -> list[dict[str, Any]]:
    """Run commands concurrently, without an MPI launcher's variables, and return the JSON document of each."""
    # with these variables a run would take itself for a rank of the job that started this process
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "HYDRA"))}
    processes = [
        subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)  # noqa: S603
        for each in commands
    ]
    metrics = []
    for command, process in zip(commands, processes, strict=True):
        out, errors = process.communicate(timeout=TIMEOUT_S)
        if process.returncode:
            raise RunError(f"{' '.join(command)}: exit code {process.returncode}: {errors.strip()}")
        metrics.append(json.loads(out))
    return metrics
