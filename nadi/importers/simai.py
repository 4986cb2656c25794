"""Files and options of SimAI: workloads of layers, topologies, SimAI.conf, and bus bandwidths of its analytical mode.

Sources of the meanings: aliyun/SimAI, astra-sim-alibabacloud/astra-sim (workload/Workload.cc, workload/Layer.cc,
system/MockNcclGroup.cc, system/AstraParamParse.hh, network_frontend/ns3/entry.h and common.h), and aliyun/aicb.

The file of bus bandwidths (busbw.yaml) is no YAML: its first line is a title, indentation means nothing, keys end in a
comma, and a line that ends in a colon begins a section. Values are GiB/s of bus bandwidth, which SimAI calls GB/s.
Source: UserParam::parseYaml (system/AstraParamParse.hh) and Layer::compute_time (workload/Layer.cc).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nadi import inputs, topologies
from nadi.errors import ConfigError
from nadi.et import CollectiveCommType
from nadi.et.formats.simai import DIALECT
from nadi.et.layers import LayerFile, RankNumbering, read_layers, stage_tables
from nadi.importers import FileSections, TranslatedRun, warning
from nadi.importers.ns3 import ns3_part, read_ns3
from nadi.inputs.limits import MAX_NPUS
from nadi.topologies import Graph
from nadi.workload import TraceSet

_KEYS = {
    CollectiveCommType.ALL_REDUCE: "allreduce",
    CollectiveCommType.ALL_GATHER: "allgather",
    CollectiveCommType.REDUCE_SCATTER: "reducescatter",
    CollectiveCommType.ALL_TO_ALL: "alltoall",
}
_SECTION_OF_GROUP = {"TP": "TP", "DP": "DP", "EP": "EP", "DP_EP": "EP"}
_GIB = 1 << 30
_MAX_GIBPS = 1e6  # far above the NVLink of any GPU, and within the rates of links
_EXPECTED = "bus bandwidths of SimAI (TP:, then allreduce,: 300)"
_SEND_LATENCY_US = 6  # SimAI's latency of each message without AS_SEND_LAT
_MAX_SEND_LATENCY_US = 10**6
_COLLECTIVES = {  # without kernels, which SimAI has not; its latency of each message is in their place
    "all-reduce": "rotated-ring:proto=none",
    "all-gather": "rotated-ring:proto=none",
    "reduce-scatter": "rotated-ring:proto=none",
    "all-to-all": "direct:proto=none",
}
_UNUSED_VARIABLES = ("AS_PXN_ENABLE", "AS_NVLS_ENABLE", "AS_NVLSTREE_ENABLE")
_UNIT = (
    "AS_SEND_LAT is microseconds, as SimAI's code takes it (and nanoseconds in the pages of SimAI 1.7): each message "
    "is sent {latency} us after it is posted"
)


class BusBandwidths(NamedTuple):
    """The bus bandwidths of a file."""

    path: Path  # path of the file
    gibps: dict[tuple[str, str], float]  # GiB/s by section and key, ("TP", "allreduce"); "null" is left out

    def nanos(self, group: str, kind: CollectiveCommType, size_bytes: int, members: int) -> float:
        """Return the time of a collective in nanoseconds; ConfigError if the file has no bandwidth for it."""
        section, key = _SECTION_OF_GROUP[group], _KEYS[kind]
        if members == 1:
            return 0.0
        if (section, key) not in self.gibps:
            raise ConfigError(f"{self.path}: {section} has no {key}, which the workload uses; expected GB/s")
        factor = (2 if kind == CollectiveCommType.ALL_REDUCE else 1) * (members - 1) / members
        return size_bytes * factor / (self.gibps[section, key] * _GIB) * 1e9

    @property
    def pipeline_bps(self) -> int | None:
        """Bits per second of messages between pipeline stages; None if the file has none."""
        gibps = self.gibps.get(("PP", "busbw"))
        return None if gibps is None else round(gibps * _GIB * 8)


def read_busbw(path: Path) -> BusBandwidths:
    """Return the bus bandwidths in a file; raise ConfigError if a value is wrong or there are none."""
    with inputs.refusing(path, _EXPECTED, ConfigError, UnicodeDecodeError):
        lines = inputs.read_text(path).splitlines()
    section, found = "", {}
    for number, line in enumerate(lines[1:], start=2):
        text = line.partition("#")[0].strip()
        key, _, value = text.partition(":")
        key = key.partition(",")[0].strip()
        if text.endswith(":"):
            section = key
        elif text and value.strip() != "null":
            found[section, key] = _gibps(f"{path}: line {number}: {section} {key}", value.strip())
    if not found:
        raise ConfigError(f"{path}: no bandwidths, expected {_EXPECTED}")
    return BusBandwidths(path, found)


def _gibps(place: str, text: str) -> float:
    """Return a bandwidth in GiB/s; ConfigError, which begins with the place, if the text is none."""
    try:
        value = float(text) if len(text) < 40 else 0.0
    except ValueError:
        value = 0.0
    if not 1e-3 <= value <= _MAX_GIBPS:
        raise ConfigError(f"{place} is {text[:40]!r}, expected GB/s from 0.001 to {_MAX_GIBPS:g}, or null")
    return value


def trace_set(file: LayerFile, gpus: int, bandwidths: BusBandwidths | None = None) -> TraceSet:
    """Return the traces of a number of GPUs; with bandwidths, collectives are computations that take their time.

    Raises ConfigError or TraceError: the numbers of the file do not fit together.
    """
    if not 1 <= gpus <= MAX_NPUS:
        raise ConfigError(f"{file.path}: {gpus} GPUs, expected 1 to {MAX_NPUS}")
    ranks = RankNumbering(file, gpus)
    dialect = DIALECT if bandwidths is None else replace(DIALECT, collective_nanos=bandwidths.nanos)
    tables, table_of_stage = stage_tables(file, dialect, 1, ranks)
    examples = [ranks.stages[table_of_stage.index(number)].first_npu for number in range(len(tables))]
    used = {name for table in tables for name in table.group_names if name}
    families = {kind: tuple(ranks.family(kind)) for kind in sorted(used)}
    # stage after stage, each on as many consecutive GPUs
    trace_of_npu = np.repeat(np.array(table_of_stage, np.int32), ranks.stages[0].stride)
    return TraceSet(tables, trace_of_npu, np.array(examples, np.int32), families)


def read_workload(path: Path) -> tuple[LayerFile, list[str]]:
    """Return the layers of a file as SimAI takes them, and sentences about what differs from the text of the file.

    SimAI reads the first layer of `checkpoints` and of `checkpoint_initiates` again for each further one.
    """
    file = read_layers(path)
    dropped = [name for name, layers in file.lists.items() if len(layers) > 1]
    warnings = [
        f"{path}: {name} has {len(file.lists[name])} layers, of which only the first ({file.lists[name][0]}) counts, "
        "as in SimAI"
        for name in dropped
    ]
    if file.numbers.get("pp", 1) > 1 and not file.numbers.get("pp_comm"):
        warnings.append(f"{path}: pp is {file.numbers['pp']} without pp_comm, so that stages send each other nothing")
    return file._replace(lists={name: layers[:1] for name, layers in file.lists.items()}), warnings


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
    file, warnings = read_workload(options.workload)
    graph = topologies.build(options.topology)
    gpus = options.gpus or graph.npus
    if gpus > graph.npus:
        raise ConfigError(f"-g {gpus}: expected at most {graph.npus}, the GPUs of {options.topology}")
    in_file = file.numbers.get("all_gpus", gpus)
    if in_file != gpus:
        warnings.append(
            f"{options.workload}: all_gpus is {in_file}, but {gpus} GPUs run it, as SimAI counts the topology's"
        )
    network = _configuration(options.configuration, graph)
    latency_us = _send_latency_us(environment)
    if "AS_SEND_LAT" in environment:
        warnings.append(_UNIT.format(latency=latency_us))
    others = tuple(name for name in _UNUSED_VARIABLES if environment.get(name, "0") != "0")
    unused = warning([(str(options.configuration), network), ("environment", FileSections({}, others))])
    sections = {
        "workload": {"trace_set": trace_set(file, gpus)},
        "topology": {"graph": graph},
        "system": {"collectives": _COLLECTIVES},
        **network.sections,
    }
    sections["network"] = {**network.sections.get("network", {}), "send_latency": f"{latency_us}us"}
    return TranslatedRun(sections, (*warnings, *([unused] if unused else [])))


def _analytical(options: SimaiOptions, bandwidths_path: Path) -> TranslatedRun:
    """Return the sections of a run whose collectives take their time at a bus bandwidth, without links."""
    file, warnings = read_workload(options.workload)
    bandwidths = read_busbw(bandwidths_path)
    gpus = options.gpus or file.numbers.get("all_gpus", 0)
    if not gpus:
        raise ConfigError(f"{options.workload}: no all_gpus; expected -g N")
    fabric: dict[str, Any] = {"name": "switch", "params": {"npus": gpus, "delay": "0ps"}}
    if bandwidths.pipeline_bps is not None:
        fabric["params"]["rate"] = f"{bandwidths.pipeline_bps}bps"
    elif file.numbers.get("pp", 1) > 1 and file.numbers.get("pp_comm"):
        raise ConfigError(f"{bandwidths_path}: PP has no busbw, which the workload uses; expected GB/s")
    warnings.append("collectives are computations of fixed time, so that the report counts them as compute")
    sections = {
        "workload": {"trace_set": trace_set(file, gpus, bandwidths)},
        "topology": fabric,
        "network": {"fidelity": "closed-form"},
    }
    return TranslatedRun(sections, tuple(warnings))


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
