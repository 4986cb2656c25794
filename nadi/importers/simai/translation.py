"""The options of SimAI_simulator and SimAI_analytical as the sections of a run file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nadi import topologies
from nadi.errors import ConfigError
from nadi.importers.file_sections import FileSections, TranslatedRun, warning
from nadi.importers.ns3 import ns3_part, read_ns3
from nadi.importers.simai.busbw import read_busbw
from nadi.importers.simai.workload import read_workload, trace_set
from nadi.topologies import Graph

_SEND_LATENCY_US = 6  # SimAI's latency of each message without AS_SEND_LAT
_MAX_SEND_LATENCY_US = 10**6
_COLLECTIVES = {
    "all-reduce": "rotated-ring",
    "all-gather": "rotated-ring",
    "reduce-scatter": "rotated-ring",
    "all-to-all": "direct",
}
_UNUSED_VARIABLES = ("AS_PXN_ENABLE", "AS_NVLS_ENABLE", "AS_NVLSTREE_ENABLE")
_UNIT = (
    "AS_SEND_LAT is microseconds, as SimAI's code takes it (and nanoseconds in the pages of SimAI 1.7): each message "
    "is sent {latency} us after it is posted"
)


class SimaiOptions(NamedTuple):
    """Options of SimAI's programs."""

    workload: Path  # -w, workload of layers
    topology: str = ""  # -n, topology text, or a specification of Nadi
    configuration: Path | None = None  # -c, SimAI.conf
    gpus: int = 0  # -g, number of GPUs; 0 = those of the topology
    bandwidths: Path | None = None  # -busbw, bus bandwidths in place of a topology


def translated(options: SimaiOptions, environment: Mapping[str, str]) -> TranslatedRun:
    """Return the sections of a run file for options and SimAI's environment variables (AS_SEND_LAT, ...)."""
    if bool(options.topology) == bool(options.bandwidths):
        found = "both" if options.topology else "neither"
        raise ConfigError(f"found {found} of -n TOPOLOGY and -busbw FILE; expected one of them")
    if options.bandwidths is not None:
        if options.configuration is not None:
            raise ConfigError("found -c beside -busbw; expected it beside -n, as no packets are sent")
        return _analytical(options, options.bandwidths)
    file, remarks = read_workload(options.workload)
    graph = topologies.build(options.topology)
    gpus = options.gpus or graph.npus
    if gpus > graph.npus:
        raise ConfigError(f"-g {gpus}: expected at most {graph.npus}, the GPUs of {options.topology}")
    in_file = file.numbers.get("all_gpus", gpus)
    if in_file != gpus:
        remarks.append(
            f"{options.workload}: all_gpus is {in_file}, but {gpus} GPUs run it, as SimAI counts the topology's"
        )
    network = _configuration(options.configuration, graph)
    latency_us = _send_latency_us(environment)
    if "AS_SEND_LAT" in environment:
        remarks.append(_UNIT.format(latency=latency_us))
    others = tuple(name for name in _UNUSED_VARIABLES if environment.get(name, "0") != "0")
    unused = warning([(str(options.configuration), network), ("environment", FileSections({}, others))])
    sections = {
        "workload": {"trace_set": trace_set(file, gpus)},
        "topology": {"graph": graph},
        "system": {"collectives": _COLLECTIVES},
        **network.sections,
    }
    sections["network"] = {**network.sections.get("network", {}), "send_latency": f"{latency_us}us"}
    return TranslatedRun(sections, (*remarks, *([unused] if unused else [])))


def _analytical(options: SimaiOptions, bandwidths_path: Path) -> TranslatedRun:
    """Return the sections of a run whose collectives take their time at a bus bandwidth, without links."""
    file, remarks = read_workload(options.workload)
    bandwidths = read_busbw(bandwidths_path)
    gpus = options.gpus or file.numbers.get("all_gpus", 0)
    if not gpus:
        raise ConfigError(f"{options.workload}: no all_gpus; expected -g N")
    fabric: dict[str, Any] = {"name": "switch", "params": {"npus": gpus, "delay": "0ps"}}
    if bandwidths.pipeline_bps is not None:
        fabric["params"]["rate"] = f"{bandwidths.pipeline_bps}bps"
    elif file.numbers.get("pp", 1) > 1 and file.numbers.get("pp_comm"):
        raise ConfigError(f"{bandwidths_path}: PP has no busbw, which the workload uses; expected GB/s")
    remarks.append("collectives are computations of fixed time, so that the report counts them as compute")
    sections = {
        "workload": {"trace_set": trace_set(file, gpus, bandwidths)},
        "topology": fabric,
        "network": {"fidelity": "closed-form"},
    }
    return TranslatedRun(sections, tuple(remarks))


def _configuration(path: Path | None, graph: Graph) -> FileSections:
    """Return the part of SimAI.conf, whose GLOBAL_T counts as 1 whatever it says; an empty part without a file."""
    if path is None:
        return FileSections({})
    part = ns3_part(read_ns3(path), graph)
    return part._replace(unused=tuple(key for key in part.unused if key != "GLOBAL_T"))


def _send_latency_us(environment: Mapping[str, str]) -> int:
    """Return the latency of each message in microseconds."""
    text = environment.get("AS_SEND_LAT", str(_SEND_LATENCY_US))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= _MAX_SEND_LATENCY_US):
        raise ConfigError(f"AS_SEND_LAT is {text[:40]!r}, expected microseconds from 0 to {_MAX_SEND_LATENCY_US}")
    return int(text)
