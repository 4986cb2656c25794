"""Pairs of runs of which one has a better fabric, and must not take longer."""

import json

from tests.features.matrix import REFUSED
from tests.features.running import outcome_of_file, toml_of
from tests.features.situations.running import fault_of, graph_of, judged, normalised, run_with_results, sections
from tests.features.situations.values import FACTORS, FAULT, FIDELITY, GPUS, LINK, PLACE, UNITS, WORK
from topologies.clusters import clusters
from topologies.machines import machines
from topologies.units import format_rate, format_time, parse_delay, parse_rate

CHANGE = "change"
PLAIN = dict.fromkeys(FACTORS, 0)
CHANGES = {
    CHANGE: [
        "faster NICs",
        "faster NVLinks",
        "more spines",
        "shorter cables",
        "larger buffers",
        *(f"no {fault}" for fault in FACTORS[FAULT][1:]),
    ],
    **{factor: FACTORS[factor] for factor in (PLACE, GPUS, UNITS, WORK, FIDELITY, LINK)},
}


def pair(situation, folder):
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
        fault = FACTORS[FAULT].index(change.removeprefix("no "))
        return sections(rest | {FAULT: fault}, folder), better
    if change == "larger buffers":
        for run, size in ((worse, "1MB"), (better, "16MB")):
            run["network"] |= {"switch": "shared-buffer", "buffer": size}
        return worse, better
    kind, name = value[PLACE].split()
    fabric = clusters()[name].topology(value[GPUS]) if kind == "cluster" else {"delay": "500ns", "spines": 2}
    key, factor = {
        "faster NICs": ("rate", 2),
        "faster NVLinks": ("nvlink_rate", 2),
        "more spines": ("spines", 2),
        "shorter cables": ("delay", 0.5),
    }[change]
    if key not in fabric:
        return None
    for run, times in ((worse, 1), (better, factor)):
        if key == "spines":
            value = fabric[key] * times
        elif key == "delay":
            value = format_time(int(parse_delay(fabric[key]) * times))
        else:
            value = format_rate(int(parse_rate(fabric[key]) * times))
        run["topology"]["params"] = run["topology"].get("params", {}) | {key: value}
    return worse, better


def ratio(situation, folder):
    """Run a pair; return the better time over the worse one, or why there is none."""
    times = []
    for run in pair(situation, folder):
        path = folder / "run.toml"
        path.write_text(toml_of(run))
        found = judged(outcome_of_file(path, run_with_results))
        if found:
            return found
        times.append(json.loads((folder / "results" / "summary.json").read_text())["finish_time_ps"])
    return times[1] / times[0]
