"""Runs of situations: their run files, and the comparison of their results with those of the plain way to run them."""

import contextlib
import functools
import io
import json
import re
import shutil
import warnings

from nadi import topologies
from nadi.cli.main import main
from nadi.configuration.machine import TopologySection
from nadi.pdes.parallel import compile_all
from nadi.simulation.closed_forms.advancing.run import compile_closed_form
from nadi.topologies.clusters import clusters
from nadi.topologies.graph import NPU, NVSWITCH
from nadi.topologies.machines import machines
from tests.features.matrix import REFUSED
from tests.features.restarting import different, reuse_that_ends, run_in_parts
from tests.features.running import outcome_of_file, toml_of
from tests.features.situations import values as factors
from tests.features.situations.relations import broken
from tests.features.situations.work import job_of, write_work

ENDED = "ended"
RESULTS = "results"
FAILURE = re.compile(r"(?:nadi: (?!error: (?!ended as requested))[^\n]+\n)*+nadi: error: ([^\n]+)\n(?:  [^\n]+\n)*+\n*")
"""What Nadi prints of a simulation that fails: perhaps warnings, then one line, and perhaps a list of who waits."""
COMPLAINT = re.compile(r"Traceback|\w*Error\b(?<!nadi: error)|Exception ignored|Warning: |this is a defect")
LEGITIMATE = ("has no path to",)
"""Ends of runs that failed as the simulated machine would."""
NETWORK = {
    "packets": {},
    "flows": {"fidelity": "flow", "collectives": "steps"},
    "coupled flows": {"fidelity": "flow", "collectives": "coupled"},
    "mixed": {"flows": ["p2p", "all"]},
    "NVLink closed forms": {"nvlink": "closed-form"},
    "closed forms": {"fidelity": "closed-form"},
    "whole messages": {"fidelity": "analytical"},
    "whole messages, unaware": {"fidelity": "analytical", "congestion_aware": False},
}
MIXED = {"dense": ["tp"], "experts": ["ep"], "fsdp": ["dp"], "serving": ["tp"], "collectives": ["all"]}
ENGINE = {
    "alone": {},
    "threads": {"workers": 2, "lps_per_worker": 2},
    "processes": {"workers": 2, "backend": "processes"},
}
AT, UNTIL = "50us", "250us"


def topology_of(place, gpus, units):
    """Return the keys of [topology] of a place and its units, as FACTORS names them, with a number of GPUs."""
    kind, name = place.split()
    if kind == "fabric":
        return {"spec": f"{name}:{factors.FABRICS[name].get(gpus, f'npus={gpus}')}"}
    found = {"cluster": name, "gpus": gpus} if kind == "cluster" else {"spec": f"{name}:npus={gpus}"}
    key = "hosts_per_rail_leaf" if kind == "machine" else "hosts_per_unit"
    if units == "of one server" and (kind == "machine" or key in clusters()[name].fabric):
        found["params"] = {key: 1}
    return found


@functools.cache
def graph_of(place, gpus, units):
    try:
        return topologies.build(TopologySection(**topology_of(place, gpus, units)).source())
    except ValueError:
        return None


def kind_of_link(graph, link):
    kinds = {int(graph.node_kind[node]) for node in (graph.link_src[link], graph.link_dst[link])}
    if NVSWITCH in kinds or kinds == {NPU}:
        return "NVLink"
    return "NIC" if NPU in kinds else "uplink"


def link_of(graph, kind):
    """Return a link of a kind in the first third of these, or of the next kind if there is none."""
    kinds = factors.FACTORS[factors.LINK][factors.FACTORS[factors.LINK].index(kind) :] + factors.FACTORS[factors.LINK]
    found = [[link for link in range(0, graph.links, 2) if kind_of_link(graph, link) == kind] for kind in kinds]
    links = next(filter(None, found))
    return links[len(links) // 3]


def fault_of(fault, kind, graph):
    """Return the keys of [[faults]] of a fault at a link of a kind, or at a switch at its end."""
    link = link_of(graph, kind)
    ends = [int(graph.link_src[link]), int(graph.link_dst[link])]
    names = [graph.node_name(node) for node in ends]
    at_link = {"link": " - ".join(names), "at": AT}
    at_switch = {"switch": names[ends.index(max(ends))], "at": AT, "state": "down"}
    if max(ends) < graph.npus and graph.nodes > graph.npus:  # a link between NPUs
        at_switch["switch"] = graph.node_name(graph.npus)
    return {
        "link down": at_link | {"state": "down"},
        "link back": at_link | {"state": "down", "until": UNTIL},
        "cable down": at_link | {"state": "down", "cable": 0},
        "switch down": at_switch,
        "switch back": at_switch | {"until": UNTIL},
        "slow GPU": {"npu": graph.npus // 3, "at": AT, "slowdown": 1.5},
        "slow link": at_link | {"rate": "20Gbps", "until": UNTIL},
        "slow link for the whole run": at_link | {"rate": "100Gbps", "at": "0s"},
        "late link": at_link | {"added_latency": "3us"},
        "lossy link": at_link | {"error_rate": 0.01},
    }[fault]


def _fabric(value):
    """Return the arguments of `topology_of` in a described situation."""
    return value[factors.PLACE], value[factors.GPUS], value[factors.UNITS]


def sections(situation, folder):
    """Return what the run file of a situation says, by sections and keys; folder: that `warm_up` filled."""
    value = factors.described(situation)
    place, gpus, fidelity = value[factors.PLACE], value[factors.GPUS], value[factors.FIDELITY]
    graph = graph_of(*_fabric(value))
    found = {"topology": topology_of(*_fabric(value)), "engine": dict(ENGINE[value[factors.WORKERS]])}
    if value[factors.REUSE] == "off":
        found["engine"]["reuse"] = "off"
    network = factors.FABRIC_NETWORK.get(place.split()[1], {}) | NETWORK[fidelity]
    if fidelity == "mixed":
        network["flows"] = MIXED[value[factors.WORK]]
    if value[factors.FAULT] != "none" and graph is not None:
        found["faults"] = [fault_of(value[factors.FAULT], value[factors.LINK], graph)]
        if "state" in found["faults"][0]:
            network["detection_time"] = "20us"
    if place.startswith("machine"):
        found["compute"] = {"gpu": machines()[place.split()[1]].accelerator}
    elif place.startswith("fabric"):
        found["compute"] = {"gpu": "h100"}
    found["network"] = network
    if value[factors.COMPANY] == "alone":
        return job_of(value[factors.WORK], gpus, folder) | found
    companion = {"the same work": value[factors.WORK]}.get(value[factors.COMPANY], value[factors.COMPANY])
    jobs = []
    for name, work in (("first", value[factors.WORK]), ("second", companion)):
        keys = job_of(work, gpus // 2, folder)
        jobs.append({"name": name} | keys["workload"] | ({"serving": keys["serving"]} if "serving" in keys else {}))
    return {"jobs": jobs} | found


def run_with_results(path):
    """Do what `nadi run` does, with results beside the run file; return the exit code."""
    warnings.simplefilter("always")
    shutil.rmtree(path.with_name(RESULTS), ignore_errors=True)
    return main(["run", str(path), "--quiet", "--out", str(path.with_name(RESULTS))])


def run_with_stops(path):
    """Do the same with stops at random moments, after which the run continues."""
    warnings.simplefilter("always")
    shutil.rmtree(path.with_name(RESULTS), ignore_errors=True)
    _, code = run_in_parts(path, path.with_name(RESULTS), ["--set", "engine.checkpoint=1h"])
    return code


def warm_up(folder):
    """Compile and import in this process what forked ones will need, and write the work of all situations."""
    compile_all()
    compile_closed_form()
    write_work(folder)
    for number in range(len(factors.FACTORS[factors.FIDELITY])):
        path = folder / "run.toml"
        path.write_text(toml_of(sections(dict.fromkeys(factors.FACTORS, 0) | {factors.FIDELITY: number}, folder)))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            main(["run", str(path), "--quiet"])


def judged(found):
    """Return an outcome of `outcome_of_file` with legitimate failures as ENDED and their reason."""
    if found.startswith("exit code 1: "):
        line = FAILURE.fullmatch(found.removeprefix("exit code 1: "))
        if line and any(text in line[1] for text in LEGITIMATE) and "this is a defect" not in found:
            return f"{ENDED}: {line[1]}"
    return found


def outcome(situation, folder, ended=None):
    """Run a situation; return "" if it ran or ended legitimately, REFUSED and why, or what is wrong.

    Args:
        situation: Number of a value for each factor.
        folder: Folder that `warm_up` filled.
        ended: List to which the line of a legitimate failure is added.
    """
    results, plain = folder / RESULTS, folder / "plain"
    found = _outcome_of(situation | factors.PLAIN_WAY, folder, run_with_results)
    if found and not found.startswith(ENDED):
        return found
    if ended is not None and found:
        ended.append(found)
    unsound = "" if found else broken(results, graph_of(*_fabric(factors.described(situation))))
    if factors.PLAIN_WAY.items() <= situation.items():
        return unsound
    shutil.rmtree(plain, ignore_errors=True)
    if not found:
        results.rename(plain)
    other = _outcome_of(situation, folder, _action_of(factors.described(situation)))
    if other.startswith(REFUSED):
        return other
    if bool(found) != bool(other) or (other and not other.startswith(ENDED)):
        return f"the plain way: {found or 'ran'}; this way: {other or 'ran'}"
    wrong = [] if found else different(results, plain)
    if (
        factors.described(situation)[factors.REUSE] == "off" and "events" in wrong
    ):  # docs/explanation/reuse.md: they differ
        wrong.remove("events")
    return f"other results than the plain way: {wrong}" if wrong else unsound


def _action_of(value):
    """Return what runs the run file of a described situation."""
    run = run_with_stops if value[factors.RESTART] else run_with_results
    if value[factors.REUSE] != factors.ENDS_ON_THE_WAY:
        return run

    def run_until_in_vain(path):
        with reuse_that_ends(path):
            return run(path)

    return run_until_in_vain


def _outcome_of(situation, folder, action):
    """Run a situation one way; return "", REFUSED or ENDED and why, or what is wrong, warnings of Python included."""
    path = folder / "run.toml"
    path.write_text(toml_of(sections(situation, folder)))
    found = judged(outcome_of_file(path, action))
    if found.startswith(REFUSED):
        return normalised(found, situation, folder)
    said = path.with_name("stderr").read_text(errors="replace")
    return f"it ran, and printed {said}" if not found and COMPLAINT.search(said) else found


def normalised(text, situation, folder):
    """Return a refusal, alike for all numbers and places."""
    name = factors.described(situation)[factors.PLACE].split()[1]
    own = text.replace(name, "PLACE").replace(str(folder), "")
    return json.dumps(re.sub(r"\d+", "N", re.sub(r"found (tp|ep|dp|all) with", "found GROUP with", own)))[1:-1]
