"""A feature run: `nadi run` in a forked process, which may crash or hang without harm to the others."""

import contextlib
import faulthandler
import io
import itertools
import json
import os
import re
import signal
import sys
import time
import traceback
from functools import cache
from pathlib import Path

import numpy as np

from nadi import et
from nadi.cli.main import main
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.pdes.parallel import compile_all
from nadi.simulation.closed_forms.advancing.run import compile_closed_form
from nadi.topologies import NVSWITCH, build, route
from nadi.topologies.graph import NPU
from nadi.workload.kinds import KINDS
from tests.features.matrix import REFUSED
from tests.features.values import ALWAYS, COLLECTIVE, COMPANY, CONGESTION, FABRIC, FACTORS, NPUS, OPTICAL, WORKERS

LONGEST_S = 60
JOB_RANKS = NPUS // 2
HUNG = 64
"""Exit code of a process that was at it for LONGEST_S."""
REFUSAL = re.compile(r"nadi: error: [^\n]+\n")
COMPLAINT = re.compile("Traceback|IndexError|Exception ignored")
"""What Python and Numba print of an exception that has nowhere to go, as of a hook that checks its indices."""
_ENGINE = {
    "alone": {},
    "threads": {"workers": 2, "lps_per_worker": 2},
    "processes": {"workers": 2, "backend": "processes"},
}


def write_traces(folder):
    """Write sets of traces for each kind of collective, of all NPUs and of the ranks of a job."""
    for kind in KINDS:
        own = folder / kind
        own.mkdir()
        for npu in range(NPUS):
            et.write_trace(own / f"trace.{npu}.et", et.metadata(), _nodes(npu, kind, NPUS))
        for rank in range(JOB_RANKS):
            et.write_trace(own / f"job.{rank}.et", et.metadata(), _nodes(rank, kind, JOB_RANKS))


def warm_up(folder):
    """Compile and import in this process what forked ones will need; folder: that `write_traces` filled."""
    compile_all()
    compile_closed_form()
    for number in range(len(FACTORS["network.fidelity"])):
        path = folder / "run.toml"
        path.write_text(run_file(dict.fromkeys(ALWAYS, 0) | {"network.fidelity": number}, folder))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            if main(["run", str(path), "--quiet"]) != 0:
                raise AssertionError(f"{path} fails")


def _nodes(npu, kind, npus):
    """Return the nodes of an NPU: a collective of few bytes and one of many beside messages, memory and compute."""
    comm_type = et.CollectiveCommType[kind.replace("-", "_").upper()]
    after, before = (npu + 1) % npus, (npu - 1) % npus
    small, large = (0, 0) if kind == "barrier" else (3001, 1 << 20)
    nodes = [
        et.comp_node(1, "forward", duration_micros=2),
        et.coll_node(2, "first", comm_type, small, deps=[1], comm_priority=1),
        et.send_node(3, "send", npu, after, 20_000, deps=[1]),
        et.recv_node(4, "receive", before, npu, 20_000, deps=[1]),
        et.coll_node(5, "second", comm_type, large, deps=[1], comm_priority=2),
        et.comp_node(6, "backward", duration_micros=1, deps=[2, 4]),
        et.mem_node(7, "load", et.NodeType.MEM_LOAD_NODE, 2000, tensor_loc=1, deps=[1]),
        et.coll_node(8, "gradients", et.CollectiveCommType.ALL_REDUCE, 5000, deps=[5, 6]),
    ]
    if kind == "all-to-all":
        splits = [1000 * ((npu + peer) % 3) for peer in range(npus)]
        nodes.append(et.coll_node(9, "uneven", comm_type, sum(splits), in_split_size=splits, deps=[8]))
    return nodes


def sections(run, folder):
    """Return what the run file of a run says, by sections and keys; folder: that `write_traces` filled."""
    value = described(run)
    kind, algorithm = value[COLLECTIVE].split()
    found = {
        "workload": {"traces": f"{folder}/{kind}/trace"},
        "topology": {"spec": value[FABRIC]},
        "system": {"collectives": {kind: algorithm}},
        "network": {},
        "engine": dict(_ENGINE[value[WORKERS]]),
        "memory": {"bandwidth": "100GB/s"},
    }
    if OPTICAL in value:
        found[OPTICAL] = value.pop(OPTICAL)
    if value.get("network.routing") == "source":
        found["network"]["source_routes"] = _paths_of(value[FABRIC], folder)
    jobs = {factor: value.pop(factor) for factor in list(value) if factor.startswith("jobs.")}
    if jobs:
        del found["workload"]
        found["jobs"] = _jobs(f"{folder}/{kind}/job", {factor.partition(".")[2]: jobs[factor] for factor in jobs})
    for factor, company in COMPANY.items():
        found[factor.partition(".")[0]] |= company if factor in value else {}
    for factor in sorted(value):
        section, dot, key = factor.partition(".")
        if factor == CONGESTION:
            ((control, parameters),) = value[factor].items()
            found[section] |= {"congestion_control": control, "congestion": parameters}
        elif dot and (factor, value[factor]) != ("network.fidelity", "packet"):
            found[section][key] = value[factor]
    return found


@cache
def _paths_of(spec, folder):
    """Return a file of the first and last path of pairs of NPUs that no NVSwitch joins."""
    graph = build(spec)
    lines = []
    for src, dst in itertools.permutations(range(graph.npus), 2):
        ways = [graph.link_dst[route(graph, src, dst, choose)][:-1].tolist() for choose in (max, min)]
        crossed = graph.node_kind[[node for way in ways for node in way]]
        if len(crossed) and not np.isin(crossed, [NPU, NVSWITCH]).any():
            paths = [" -> ".join(map(graph.node_name, way)) for way in ways]
            lines.append(f"{json.dumps(f'npu {src} -> npu {dst}')} = {json.dumps(paths)}\n")
    path = folder / f"{spec.partition(':')[0]}.paths.toml"
    path.write_text("".join(lines))
    return str(path)


def _jobs(traces, keys):
    """Return two jobs that share the NPUs; the keys are of the first, whose copies have two ranks of traffic."""
    first = {"name": "first", "gpus": JOB_RANKS // keys.get("repeat", 1)} | keys
    if "traffic" not in first:
        first = {"name": "first", "traces": traces} | keys
    return [first] if "repeat" in keys and "traffic" not in keys else [first, {"name": "second", "traces": traces}]


def described(run):
    return {factor: FACTORS[factor][number] for factor, number in run.items()}


def run_file(run, folder):
    return toml_of(sections(run, folder))


def toml_of(run_sections):
    """Return the text of a run file; run_sections: keys by section, of [[jobs]] and [[faults]] a list of these."""
    lines = []
    for section, found in run_sections.items():
        for keys in found if isinstance(found, list) else [found]:
            lines += [f"[[{section}]]" if isinstance(found, list) else f"[{section}]"]
            lines += [f"{key} = {_toml(given)}" for key, given in keys.items()]
    return "\n".join(lines) + "\n"


def is_valid(run, folder):
    if CONGESTION in run and "network.congestion_control" in run:
        return False
    try:
        load_config(None, sections=sections(run, folder))
    except ConfigError:
        return False
    return True


def _toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def run_quietly(path):
    """Do what `nadi run` does; return the exit code."""
    return main(["run", str(path), "--quiet"])


def outcome(run, folder, action=run_quietly):
    """Do a run; return "" if it ran, REFUSED and why, or what is wrong. action: function of its file to exit code."""
    path = folder / "run.toml"
    path.write_text(run_file(run, folder))
    found = outcome_of_file(path, action)
    return _reason(found, run) if found.startswith(REFUSED) else found


def outcome_of_file(path, action):
    """Act on a run file in a child process; return "" if it ran, REFUSED and why, or what is wrong.

    Args:
        path: Path of the run file; what the action prints goes to the files stdout and stderr beside it.
        action: Function of the path to an exit code.
    """
    began = time.monotonic()
    code = _forked(path, action)
    took_s = time.monotonic() - began
    said = path.with_name("stderr").read_text(errors="replace")
    if code == HUNG:
        return f"it takes more than {LONGEST_S} s: {said}"
    if code < 0:
        return f"ended by {signal.Signals(-code).name} after {took_s:.1f} s: {said}"
    if code == 2:
        return f"{REFUSED}: {said}" if REFUSAL.fullmatch(said) else f"exit code 2 with {said!r}"
    if code == 0 and not COMPLAINT.search(said):
        return ""
    return f"exit code {code}: {said}"


def _reason(said, run):
    """Return a refusal, alike for all fabrics, collectives and numbers."""
    kind, algorithm = FACTORS[COLLECTIVE][run[COLLECTIVE]].split()
    fabric = FACTORS[FABRIC][run[FABRIC]]
    for text, name in ((fabric, "FABRIC"), (kind, "KIND"), (algorithm, "ALGORITHM")):
        said = said.replace(text, name)
    return re.sub(r"\d+", "N", said)


def _forked(path, action):
    """Act on a run file in a child process; return its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            with _to_file(1, path.with_name("stdout")), _to_file(2, path.with_name("stderr")):
                faulthandler.dump_traceback_later(LONGEST_S, exit=False, file=2)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(LONGEST_S + 1)
                code = action(path)
                sys.stdout.flush()
                sys.stderr.flush()
        except BaseException:  # noqa: BLE001 - a forked process must not go on as its parent
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return HUNG if code == -signal.SIGALRM else code


@contextlib.contextmanager
def _to_file(descriptor, path):
    """Have what is written to a file descriptor go to a file; Python's own streams too."""
    with Path(path).open("w") as file:
        os.dup2(file.fileno(), descriptor)
        with contextlib.redirect_stdout(file) if descriptor == 1 else contextlib.redirect_stderr(file):
            yield
            file.flush()
