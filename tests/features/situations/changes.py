"""Better fabrics are never slower: python -m tests.features.situations.changes [--seed N] [--seconds N]

Two runs differ in one thing: the rate of NICs or of NVLinks, the number of spines, the length of cables, the size of
switches' buffers, or a fault. Pairs of values of the factors (CHANGES) are combined into such runs until each pair of
values has run. The exit code is 1 if a better run took longer than NOISE times the worse one, or failed.
"""

import json
import secrets
import sys
import tempfile
import time
from collections import Counter
from operator import itemgetter
from pathlib import Path

from nadi.inputs.units import format_rate, format_time, parse_delay, parse_rate
from nadi.topologies.clusters import clusters
from tests.features.matrix import REFUSED, Matrix, options
from tests.features.running import outcome_of_file, toml_of
from tests.features.situations.running import ENDED, judged, normalised, run_with_results, sections, warm_up
from tests.features.situations.values import FACTORS, FAULT, FIDELITY, GPUS, LINK, PLACE, UNITS, WORK, conflicts

CHANGE = "change"
PLAIN = dict.fromkeys(FACTORS, 0)
FABRIC_CHANGES = ["faster NICs", "faster NVLinks", "more spines", "shorter cables"]
BUFFERS = "larger buffers"
CHANGES = {
    CHANGE: [*FABRIC_CHANGES, BUFFERS, *(f"no {fault}" for fault in FACTORS[FAULT][1:])],
    **{factor: FACTORS[factor] for factor in (PLACE, GPUS, UNITS, WORK, FIDELITY, LINK)},
}
WITH_BUFFERS = {"packets", "mixed", "NVLink closed forms"}
NOISE = 1.01
"""Maximum of the better time over the worse one.

Messages that come earlier may meet others in a port that they would have missed. A chain of NCCL is busy while it waits
for what the path leaves of NCCL's time of a hop (docs/explanation/nccl.md), so that shorter cables make a broadcast
alone up to 8 % longer, and the collectives of these runs up to 1 %.
"""


def worse_and_better(situation, folder):
    """Return the sections of the run files of a worse run and of a better one; None if the place has no such change.

    Args:
        situation: Number of a value for each factor of CHANGES.
        folder: Folder that `warm_up` filled.
    """
    value = {factor: CHANGES[factor][number] for factor, number in situation.items()}
    change = value[CHANGE]
    rest = PLAIN | {factor: number for factor, number in situation.items() if factor != CHANGE}
    worse, better = sections(rest, folder), sections(rest, folder)
    if change.startswith("no "):
        worse = sections(rest | _fault_of(situation), folder)
    elif change == BUFFERS:
        if value[FIDELITY] not in WITH_BUFFERS:
            return None
        for run, size in ((worse, "100KB"), (better, "16MB")):
            run["network"] |= {"switch": "shared-buffer", "pfc": False, "ecn": False, "buffer": size}
    else:
        changed = _changed(change, value[PLACE], value[GPUS])
        if changed is None:
            return None
        for run, (key, text) in zip((worse, better), changed, strict=True):
            run["topology"]["params"] = run["topology"].get("params", {}) | {key: text}
    return worse, better


def _fault_of(situation):
    """Return the choice of the fault that a situation of CHANGES leaves out, {} if it leaves none out."""
    name = CHANGES[CHANGE][situation[CHANGE]].removeprefix("no ")
    return {FAULT: FACTORS[FAULT].index(name)} if name in FACTORS[FAULT] else {}


def _changed(change, place, gpus):
    """Return the key of a fabric's parameter with its value, worse and better; None if the place has no such key."""
    kind, name = place.split()
    fabric = clusters()[name].topology(gpus) if kind == "cluster" else {"delay": "500ns", "spines": 2}
    key = {"faster NICs": "rate", "faster NVLinks": "nvlink_rate", "more spines": "spines", "shorter cables": "delay"}
    key = key[change]
    if key not in fabric:
        return None
    if key == "spines":
        return (key, fabric[key]), (key, 2 * fabric[key])
    if key == "delay":
        return (key, fabric[key]), (key, format_time(parse_delay(fabric[key]) // 2))
    return (key, fabric[key]), (key, format_rate(2 * parse_rate(fabric[key])))


def is_possible(situation, folder):
    """Return whether a place has a change, and Nadi the fault."""
    rest = {factor: number for factor, number in situation.items() if factor != CHANGE} | _fault_of(situation)
    if any(conflict <= rest.items() for conflict in conflicts()):
        return False
    try:
        return worse_and_better(situation, folder) is not None
    except ValueError:  # the place has no fabric of so many GPUs
        return False


def outcome(situation, folder, ratios=None):
    """Run a pair; return "" if the better run is not slower, REFUSED and why, or what is wrong.

    Args:
        situation: Number of a value for each factor of CHANGES.
        folder: Folder that `warm_up` filled.
        ratios: List to which the better time over the worse one is added, with the situation.
    """
    times_ps = []
    for run in worse_and_better(situation, folder):
        path = folder / "run.toml"
        path.write_text(toml_of(run))
        found = judged(outcome_of_file(path, run_with_results))
        if found.startswith(REFUSED):
            return normalised(found, PLAIN | {PLACE: situation[PLACE]}, folder)
        if found and not found.startswith(ENDED):
            return found
        summary = {} if found else json.loads((folder / "results" / "summary.json").read_text())
        times_ps.append(summary.get("finish_time_ps", float("inf")))
    worse_ps, better_ps = times_ps
    if ratios is not None and worse_ps < float("inf"):
        ratios.append((better_ps / worse_ps, [CHANGES[factor][number] for factor, number in situation.items()]))
    return f"better {better_ps} ps, worse {worse_ps} ps" if better_ps > NOISE * worse_ps else ""


def main(arguments=None):
    parser = options("python -m tests.features.situations.changes", __doc__)
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    began = time.monotonic()
    ratios, failures, refusals = [], [], Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        warm_up(folder)

        def tried(situation):
            found = outcome(situation, folder, ratios)
            if found.startswith(REFUSED):
                refusals[found] += 1
            elif found:
                failures.append(found)
                worse, better = worse_and_better(situation, folder)
                sys.stdout.write(f"# worse\n{toml_of(worse)}# better\n{toml_of(better)}{found}\n\n")
                sys.stdout.flush()
            return found

        matrix = Matrix(lambda situation: is_possible(situation, folder), tried, seed, CHANGES, {})
        matrix.cover(seconds=given.seconds)
    noise = sorted((entry for entry in ratios if entry[0] > 1), reverse=True, key=itemgetter(0))
    sys.stdout.write(
        f"seed {seed}: {len(ratios)} pairs of runs in {time.monotonic() - began:.0f} s: {sum(r < 1 for r, _ in ratios)}"
        f" faster, {len(noise)} slower by noise, the others equal; {sum(refusals.values())} refused, {len(failures)} "
        f"failures, {matrix.left} pairs of values are left\n"
    )
    for ratio, values in noise[:5]:
        sys.stdout.write(f"noise of {ratio - 1:.4%}: {values}\n")
    for reason, count in refusals.most_common():
        sys.stdout.write(f"{count} refused: {reason}\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
