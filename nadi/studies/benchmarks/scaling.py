"""What two workers make of this machine, measured in one go: `nadi bench NAME --scaling`.

`capacity` is what the machine gives two independent serial runs side by side, over one alone: shared caches, memory and
turbo clocks keep it below two. Such a pair is done when both of it are, as two workers of one run are: where a guest
of the machine holds up one of them, the pair has lost that time too. Each way of running is a process of its own, one
after another, some times in turn. A way's figure is that of its fastest round of all turns, as everywhere in
`nadi bench`: others on the machine only ever make a round slower, and two workers that meet in every window more so
than two runs that do not. What each turn gave stands beside it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from nadi.errors import ConfigError
from nadi.launching.progress import NoProgress, Progress
from nadi.launching.python import nadi_command
from pdes import RunError

TIMEOUT_S = 600
TURNS = 3
MPIEXEC = Path(sys.executable).parent / "mpiexec"


def measure_pairs(
    name: str, progress: Progress | NoProgress, *, topology: str = "", size: str = "", runs: int = 5
) -> dict[str, Any]:
    """Measure one serial run, two side by side, one and two MPI ranks, two that send messages, processes, threads.

    Args:
        name: benchmark.
        progress: told what is measured.
        topology: another fabric.
        size: another size, as people write it.
        runs: of each process.

    Returns:
        `capacity` and `rows`: workers, packet_hops_per_s, of_turns (the same of each turn), speed_up over serial, share
        of capacity, waiting (least part of the workers' time in which they waited, of all rounds), digest.

    Raises:
        RunError: a run failed, or gave another digest.
        ConfigError: there is no mpiexec beside this Python.
    """
    if not MPIEXEC.exists():
        raise ConfigError(f"{MPIEXEC}: not found; expected mpiexec beside Python, pip install 'nadi[mpi]'")
    nadi = nadi_command(["bench", name, "--json", "--quiet", "--runs", str(runs)])
    nadi += ["--topology", topology] * bool(topology) + ["--size", size] * bool(size)
    ways = {
        "serial": [nadi],
        "2 serial side by side": [nadi, nadi],
        "1 MPI rank": [[str(MPIEXEC), "-n", "1", *nadi]],
        "2 MPI ranks": [[str(MPIEXEC), "-n", "2", *nadi]],
        "2 MPI ranks, by messages": [[str(MPIEXEC), "-n", "2", *nadi, "--no-share-memory"]],
        "2 processes": [[*nadi, "--workers", "2", "--backend", "processes"]],
        "2 threads": [[*nadi, "--workers", "2", "--backend", "threads"]],
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    waiting = dict.fromkeys(ways, 1.0)
    digests = set()
    for turn in range(TURNS):
        for way, commands in ways.items():
            progress.say(f"turn {turn + 1} of {TURNS}: {way}")
            figures = run_side_by_side(commands)
            rates[way].append(joint_rate(figures))
            waiting[way] = min(waiting[way], *figures[0]["waiting_shares"])
            digests |= {each["digest"] for each in figures}
    if len(digests) > 1:
        raise RunError(f"bench {name}: ways of running gave {len(digests)} different digests")
    serial = max(rates["serial"])
    capacity = max(rates["2 serial side by side"]) / serial
    rows = [
        {
            "workers": way,
            "packet_hops_per_s": max(found),
            "of_turns": found,
            "speed_up": max(found) / serial,
            "share": max(found) / serial / capacity,
            "waiting": waiting[way],
        }
        for way, found in rates.items()
    ]
    return {"bench": name, "capacity": capacity, "turns": TURNS, "digest": digests.pop(), "rows": rows}


def joint_rate(figures: list[dict[str, Any]]) -> float:
    """Packet-hops per second of programs that ran side by side: of the best round, until the last of it was done."""
    rounds = zip(*(each["walls_s"] for each in figures), strict=True)
    return max(sum(each["packet_hops"] for each in figures) / max(walls) for walls in rounds)


def run_side_by_side(commands: list[list[str]]) -> list[dict[str, Any]]:
    """Run commands at the same time, none of them told of an MPI launcher that started this process.

    Args:
        commands: programs with their arguments; each prints its figures as one JSON document.

    Returns:
        Figures of each, in the order of `commands`.

    Raises:
        RunError: a command failed.
        subprocess.TimeoutExpired: one took longer than TIMEOUT_S.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "HYDRA"))}
    processes = [
        subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)  # noqa: S603
        for each in commands
    ]
    figures = []
    for command, process in zip(commands, processes, strict=True):
        out, errors = process.communicate(timeout=TIMEOUT_S)
        if process.returncode:
            raise RunError(f"{' '.join(command)}: exit code {process.returncode}: {errors.strip()}")
        figures.append(json.loads(out))
    return figures
