"""Files of ASTRA-sim, each as sections of a run file.

System: algorithms and scheduling of collectives, delays of endpoints, roofline of compute. Source: astra-sim/astra-sim,
system/Sys.cc and system/astraccl/CollectiveImplLookup.cc. Bandwidths are in GB/s of 10^9 bytes, endpoint-delay in ns,
peak-perf in TFLOPS.

Workload: Chakra traces PREFIX.<npu>.et, layers of ASTRA-sim 1.0, and communicator groups. Source: workload/Workload.cc.

Remote memory: none, one per NPU, one per node, or one for all NPUs. Source: astra-sim/astra-memory-analytical,
AnalyticalRemoteMemory.cc. An access takes remote-mem-latency in ns and tensor_size / remote-mem-bw in GB/s of 10^9
bytes; a memory of a node or pool serves one access at a time.

Networks, by back end. Analytical: topology, NPUs, bandwidth and latency of each dimension. Source:
astra-sim/astra-network-analytical. Bandwidths are in GB/s of 2^30 bytes, latencies in ns, both of one link.

ns-3: config.txt or config.json, the physical topology that it names, and logical dimensions. Source:
astra-sim/astra-sim, network_frontend/ns3/AstraSimNetwork.cc and examples/network/ns3. The module nadi.importers.ns3 has
the meanings of the keys.

htsim: a .topo file for the fabric, and an analytical network for the logical dimensions. Source: astra-sim/astra-sim,
network_frontend/htsim/HTSimMain.cc and proto/HTSimProtoTcp.cc.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, FiniteFloat, StringConstraints, model_validator

from nadi import inputs, topologies
from nadi.errors import ConfigError
from nadi.et import TraceTable, read_groups, read_trace
from nadi.et.formats import astra_sim
from nadi.importers import FileSections
from nadi.importers.files import PeerFile, find_named, parsed, read_model, read_text
from nadi.importers.ns3 import Ns3Config, ns3_part, read_ns3
from nadi.inputs.limits import MAX_NODES
from nadi.inputs.units import GIB, PS_PER_NS, format_rate, format_time
from nadi.workload import TraceSet
from nadi.workload.collectives import known_algorithms
from nadi.workload.trace_sets import TRACE_ENDINGS, files_of_traces, users_of_contents

_EXPECTED = "a system file of ASTRA-sim (JSON)"
_ALGORITHMS = {
    "ring": "ring",
    "doubleBinaryTree": "double-binary-tree",
    "direct": "direct",
    "halvingDoubling": "halving-doubling",
}
_SPEC = re.compile(r"(?P<name>[A-Za-z]+)(?P<window>[0-9]{0,5})")
_OF_ALL = {f"one{name[0].upper()}{name[1:]}": name for name in ("ring", "direct", "halvingDoubling")}
"""Names that make one dimension of all NPUs, with the name of their algorithm."""
_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
# Keys that ASTRA-sim reads and that nothing depends on, in it or here, with the value that means "off"
_OFF = {"boost-mode": 0, "model-shared-bus": 0, "trace-enabled": 0, "track-local-mem": 0}
_NEVER = ("L", "o", "g", "G", "local-reduction-delay", "local-mem-trace-filename", "per-node-custom-implementation")

Implementations = Annotated[list[Annotated[str, StringConstraints(max_length=64)]], Field(min_length=1, max_length=8)]
Custom = Annotated[list[str], Field(min_length=1, max_length=1)]
Switch = Annotated[int, Field(ge=0)]
Rate = Annotated[FiniteFloat, Field(ge=0, le=1e9)]
NO_GROUPS = "empty"
_EXPECTED_MEMORY = "a remote memory of ASTRA-sim (JSON with memory-type)"


def _key(name: str, default: Any = None, **limits: Any) -> Any:  # noqa: ANN401 - as pydantic's Field
    return Field(default, alias=name, **limits)


class SystemFile(PeerFile):
    """Keys of a system file; None = the file does not have the key."""

    scheduling_policy: Literal["LIFO", "FIFO", "EXPLICIT"] = _key("scheduling-policy", "FIFO")
    all_reduce: Implementations | None = _key("all-reduce-implementation")
    all_gather: Implementations | None = _key("all-gather-implementation")
    reduce_scatter: Implementations | None = _key("reduce-scatter-implementation")
    all_to_all: Implementations | None = _key("all-to-all-implementation")
    all_reduce_custom: Custom | None = _key("all-reduce-implementation-custom")
    all_gather_custom: Custom | None = _key("all-gather-implementation-custom")
    reduce_scatter_custom: Custom | None = _key("reduce-scatter-implementation-custom")
    all_to_all_custom: Custom | None = _key("all-to-all-implementation-custom")
    per_node_custom: str | None = _key("per-node-custom-implementation")
    collective_optimization: Literal["baseline", "localBWAware"] = _key("collective-optimization", "baseline")
    local_reduction_delay: FiniteFloat | None = _key("local-reduction-delay")
    active_chunks: int = _key("active-chunks-per-dimension", 1, ge=1, le=1 << 20)
    splits: int = _key("preferred-dataset-splits", 1, ge=0, le=1024)
    endpoint_delay_ns: FiniteFloat = _key("endpoint-delay", 10.0, ge=0, le=1e12)
    memory_latency: FiniteFloat | None = _key("L")
    memory_overhead: FiniteFloat | None = _key("o")
    memory_gap: FiniteFloat | None = _key("g")
    memory_gap_per_byte: FiniteFloat | None = _key("G")
    model_shared_bus: Switch | None = _key("model-shared-bus")
    peak_tflops: Rate = _key("peak-perf", 0.0)
    memory_gb_s: Rate = _key("local-mem-bw", 0.0)
    roofline: Switch = _key("roofline-enabled", 0)
    trace_enabled: Switch | None = _key("trace-enabled")
    replay_only: Switch = _key("replay-only", 0)
    track_local_mem: Switch | None = _key("track-local-mem")
    local_mem_trace_filename: str | None = _key("local-mem-trace-filename")
    boost_mode: Switch | None = _key("boost-mode")


def read_system(
    path: Path, dims: Sequence[int], *, injection_scale: float, queues_per_dim: int, has_groups: bool
) -> FileSections:
    """Return what a system file says about a network of dimensions of the sizes `dims`, fastest first.

    `injection_scale` multiplies the endpoint delay; `queues_per_dim` queues of a dimension share its active chunks.
    `has_groups`: whether there are communicators, which are rings unless they have all NPUs.
    """
    file = read_model(path, SystemFile, _EXPECTED)
    if file.replay_only:
        raise ConfigError(f"{path}: replay-only: found {file.replay_only}; expected 0: `nadi trace replay` does that")
    algorithms = {kind: _algorithm(path, file, kind, dims, has_groups=has_groups) for kind in _KINDS}
    unfit = [kind for kind, algorithm in algorithms.items() if not _fits(kind, algorithm)]
    # Each queue of a dimension has its own limit, and the chunks take the queues in turn (Sys.cc, concurrent_streams).
    at_once = queues_per_dim * math.ceil(file.active_chunks / queues_per_dim)
    # Messages of custom collectives have no endpoint delay (custom_collectives/CustomAlgorithm.cc).
    is_custom = all(not text or text.startswith("custom:") for text in algorithms.values())
    delay_ns = 0 if is_custom else int(int(file.endpoint_delay_ns) * injection_scale)
    network: dict[str, Any] = {"endpoint_delay": f"{delay_ns}ns"}
    if file.memory_gb_s:
        network["reduction_bandwidth"] = _rate(file.memory_gb_s)
    sections = {
        "workload": {"all_gather_size": "contribution"},
        "system": {
            "collectives": {kind: text for kind, text in algorithms.items() if text and kind not in unfit},
            "dataset_splits": max(file.splits, 1),
            "phases_per_dimension": at_once,
            "scheduling": "priority" if file.scheduling_policy == "EXPLICIT" else "fifo",
        },
        "network": network,
        **_compute(path, file),
    }
    return FileSections(sections, (*(f"{kind}-implementation ({algorithms[kind]})" for kind in unfit), *_unused(file)))


def _compute(path: Path, file: SystemFile) -> dict[str, Any]:
    """Return the sections [compute] and [memory]; ConfigError for a roofline without its rates."""
    if not file.roofline:
        return {"compute": {"model": "trace"}}
    for key, value in (("peak-perf", file.peak_tflops), ("local-mem-bw", file.memory_gb_s)):
        if not value:
            raise ConfigError(f"{path}: {key}: found 0 with roofline-enabled; expected more than 0")
    compute = {"model": "roofline", "peak_flops": f"{file.peak_tflops:.15g}TFLOPS"}
    return {"compute": compute, "memory": {"bandwidth": _rate(file.memory_gb_s)}}


def _rate(gb_s: float) -> str:
    """Return a bandwidth in GB/s of 10^9 bytes in the notation of run files, in whole bits per second."""
    return f"{gb_s:g}GB/s" if float(f"{gb_s:g}") == gb_s else f"{round(gb_s * 8e9)}bps"


def _algorithm(path: Path, file: SystemFile, kind: str, dims: Sequence[int], *, has_groups: bool) -> str:
    """Return the algorithm of a kind in the notation of run files, "" if the file has none."""
    name = kind.replace("-", "_")
    custom, native = getattr(file, f"{name}_custom"), getattr(file, name)
    if custom:
        return f"custom:file={find_named(custom[0], path, '.0.et')}"
    if native is None:
        return ""
    key = f"{kind}-implementation"
    algorithms = [_translated(path, key, text) for text in native]
    if native[0].startswith("one"):  # one dimension of all NPUs
        return algorithms[0]
    if len(native) != len(dims):
        raise ConfigError(
            f"{path}: {key}: found {len(native)} algorithms for {len(dims)} dimensions; expected one for each"
        )
    is_whole = kind == "all-reduce" and file.collective_optimization == "baseline"
    options = [",order=whole"] * (is_whole and len(dims) > 1)
    options += [f",ring_below={math.prod(dims)}"] * (has_groups and set(algorithms) != {"ring"})
    if len(dims) == 1 and not options:
        return algorithms[0]
    # commas separate the parameters of `grid`, so those within an algorithm become plus signs
    return f"grid:algorithms={'/'.join(algorithms).replace(',', '+')}{''.join(options)}"


def _fits(kind: str, algorithm: str) -> bool:
    """Return whether the algorithms of all dimensions implement a kind; ASTRA-sim fails when such a one starts."""
    if algorithm.startswith("custom:"):
        return True
    modules = known_algorithms()
    is_grid = algorithm.startswith("grid:")
    specs = algorithm.removeprefix("grid:algorithms=").partition(",")[0].split("/") if is_grid else [algorithm]
    return all(not spec or kind in modules[spec.partition(":")[0]].KINDS for spec in specs)


def _translated(path: Path, key: str, text: str) -> str:
    """Return the name of one dimension's algorithm here, direct4 as direct:window=4."""
    match = _SPEC.fullmatch(text)
    name, window = (match["name"], match["window"].lstrip("0")) if match else ("", "")
    name = _OF_ALL.get(name, name)
    if name not in _ALGORITHMS or (window and name != "direct"):
        known = ", ".join((*_ALGORITHMS, *_OF_ALL))
        raise ConfigError(f"{path}: {key}: found {text!r}; expected one of {known}, or direct4 with a window")
    return _ALGORITHMS[name] + (f":window={window}" if window else "")


def _unused(file: SystemFile) -> list[str]:
    """Return the keys of a file that have no effect here."""
    given = {field.alias or name: getattr(file, name) for name, field in SystemFile.model_fields.items()}
    keys = [key for key, off in _OFF.items() if given[key] not in {None, off}]
    keys += [key for key in _NEVER if given[key] is not None]
    # without the roofline, ASTRA-sim takes durations from the traces and needs no peak
    keys += ["peak-perf"] * bool(file.peak_tflops and not file.roofline)
    return keys + file.unknown_keys()


def read_workload(prefix: str, npus: int) -> FileSections:
    """Return the traces that a prefix names, one file for each of the NPUs; ConfigError if one is missing.

    ASTRA-sim appends the NPU's number and ".et" to the text, even if a folder or a file has that name, and ignores
    traces of further NPUs. A file of layers of ASTRA-sim 1.0 is converted in memory.
    """
    named = (_trace(f"{prefix}.{npu}") for npu in range(npus))
    found = [file for file in itertools.takewhile(lambda file: file is not None, named) if file is not None]
    if len(found) == npus:
        is_plain = set(files_of_traces(Path(prefix))) == set(found)
        workload: dict[str, Any] = {"traces": prefix} if is_plain else {"trace_set": _trace_set(found)}
    elif not found and astra_sim.recognises(Path(prefix)):
        layers = astra_sim.read([Path(prefix)], {"npus": str(npus)})
        tables = [layers.tables[npu] for npu in range(npus)]
        workload = {"trace_set": TraceSet.of(tables, layers.groups)}
    else:
        kind = inputs.kind_of(prefix)
        hint = f"; {prefix} is {kind.words}" if kind else ""
        missing = f"{prefix}.{len(found)}.et"
        raise ConfigError(f"{missing}: no such file{hint}; expected the prefix of traces of {npus} NPUs")
    return FileSections({"workload": workload})


def _trace(name: str) -> Path | None:
    """Return the file of a trace by its name without ending, None if there is none."""
    try:
        return next((path for end in TRACE_ENDINGS if (path := Path(name + end)).is_file()), None)
    except (OSError, ValueError):
        return None


def _trace_set(files: Sequence[Path]) -> TraceSet:
    """Return the traces of NPU 0, 1, ...; equal files are read once."""
    tables: list[TraceTable | None] = [None] * len(files)
    for npus in users_of_contents(dict(enumerate(files))).values():
        table = read_trace(files[npus[0]])
        for npu in npus:
            tables[npu] = table
    return TraceSet.of(tables)


def read_groups_of(name: str) -> FileSections:
    """Return the communicator groups of a file; a name that contains "empty" means that there are none."""
    if NO_GROUPS in name:
        return FileSections({})
    read_groups(name)
    return FileSections({"workload": {"groups": name}})


class MemoryFile(PeerFile):
    """Keys of a remote memory file."""

    kind: Literal["NO_MEMORY_EXPANSION", "PER_NODE_MEMORY_EXPANSION", "PER_NPU_MEMORY_EXPANSION", "MEMORY_POOL"] = (
        Field("NO_MEMORY_EXPANSION", alias="memory-type")
    )
    latency_ns: Annotated[FiniteFloat, Field(ge=0, le=1e12)] = Field(0.0, alias="remote-mem-latency")
    bandwidth_gb_s: Annotated[FiniteFloat, Field(ge=0, le=1e6)] = Field(0.0, alias="remote-mem-bw")
    nodes: Annotated[int, Field(ge=0)] = Field(0, alias="num-nodes")
    npus_per_node: Annotated[int, Field(ge=0)] = Field(0, alias="num-npus-per-node")


def read_memory(path: Path, npus: int) -> FileSections:
    """Return what a remote memory file says about a network of `npus` NPUs."""
    file = read_model(path, MemoryFile, _EXPECTED_MEMORY)
    if file.kind == "NO_MEMORY_EXPANSION":
        return FileSections({"memory": {"remote": "none"}}, tuple(file.unknown_keys()))
    if not file.bandwidth_gb_s:
        raise ConfigError(f"{path}: remote-mem-bw: found 0; expected more than 0 with {file.kind}")
    sharers = {"PER_NODE_MEMORY_EXPANSION": min(file.npus_per_node, npus), "MEMORY_POOL": npus}.get(file.kind, 1)
    if file.kind == "PER_NODE_MEMORY_EXPANSION" and file.nodes * sharers < npus:
        raise ConfigError(f"{path}: num-nodes: found {file.nodes} of {sharers} NPUs; expected room for {npus} NPUs")
    memory: dict[str, Any] = {
        "remote": "npu",
        "remote_sharers": sharers,
        "remote_latency": f"{round(file.latency_ns * 1000)}ps",
        "remote_bandwidth": f"{round(file.bandwidth_gb_s * 8e9)}bps",
    }
    return FileSections({"memory": memory}, tuple(file.unknown_keys()))


EXPECTED = "a network of ASTRA-sim: topology, npus_count, bandwidth and latency of each dimension (YAML or JSON)"
MAX_DIMENSIONS = 16
_EXPECTED_NS3 = "a configuration of ASTRA-sim's ns-3 back end (KEY value per line, or JSON)"
_LOGICAL = 'the logical topology of ns-3, as {"logical-dims": ["8", "2"]}'
_KEY_LINE = re.compile(r"\A\s*+[A-Z][A-Z0-9_]*+[ \t]")
_JSON_NAMES = {
    "payload_size": "PACKET_PAYLOAD_SIZE",
    "stop_time": "SIMULATOR_STOP_TIME",
    "start": "QLEN_MON_START",
    "end": "QLEN_MON_END",
}
_LINK_DOWN = ("link_down_time", "link_down_a", "link_down_b")
_SUBFLOW_ALGORITHMS = (
    "UNCOUPLED",
    "COUPLED_INC",
    "FULLY_COUPLED",
    "COUPLED_TCP",
    "COUPLED_SCALABLE_TCP",
    "COUPLED_EPSILON",
)
_WITH_VALUE = ("-o", "-sub", "-nodes", "-topo")
_PACKET_BYTES, _ACK_BYTES, _HEADER_BYTES = 1500, 40, 1  # htsim's packets have no headers; one byte is the minimum here


def _listed(value: object) -> object:
    """Return a scalar as a list of one, as ASTRA-sim 1 wrote networks of one dimension."""
    return value if isinstance(value, list) else [value]


_PER_DIMENSION = (BeforeValidator(_listed), Field(min_length=1, max_length=MAX_DIMENSIONS))


class NetworkFile(PeerFile):
    """Keys of a network file; each value is a list over the dimensions, fastest first."""

    topology: Annotated[list[Literal["Ring", "FullyConnected", "Switch"]], *_PER_DIMENSION]
    npus_count: Annotated[list[Annotated[int, Field(ge=2, le=1 << 24)]], *_PER_DIMENSION]
    bandwidth: Annotated[list[Annotated[FiniteFloat, Field(gt=0, le=1e9)]], *_PER_DIMENSION]
    latency: Annotated[list[Annotated[FiniteFloat, Field(ge=0, le=1e12)]], *_PER_DIMENSION]

    @model_validator(mode="after")
    def _equally_long(self) -> Self:
        """Refuse lists of different lengths."""
        for key in ("npus_count", "bandwidth", "latency"):
            if len(getattr(self, key)) != len(self.topology):
                raise ValueError(f"{key} has {len(getattr(self, key))} entries; expected {len(self.topology)}")
        return self


def read_analytical(path: Path, *, congestion_aware: bool | None) -> tuple[FileSections, list[int]]:
    """Return what a network file says, and the sizes of its dimensions, fastest first.

    `congestion_aware` chooses the back end; None = congestion-aware for one dimension, else unaware, as ASTRA-sim's
    congestion-aware back end has one dimension.
    """
    file = read_model(path, NetworkFile, EXPECTED)
    dims = "_".join(f"{kind}({npus})" for kind, npus in zip(file.topology, file.npus_count, strict=True))
    rates = "_".join(_rate_text(gib_s) for gib_s in file.bandwidth)
    delays = "_".join(format_time(round(ns * PS_PER_NS)) for ns in file.latency)
    aware = len(file.topology) == 1 if congestion_aware is None else congestion_aware
    sections = {
        "topology": {"spec": f"stack:dims={dims},rates={rates},delays={delays}"},
        "system": {"one_at_a_time": True},
        "network": {"fidelity": "analytical", "congestion_aware": aware, "resolution": "1ns"},
    }
    return FileSections(sections, tuple(file.unknown_keys())), file.npus_count


def _rate_text(gib_s: float) -> str:
    """Return a bandwidth in GB/s of 2^30 bytes in the notation of run files, in whole bits per second."""
    return f"{gib_s:g}GiB/s" if float(f"{gib_s:g}") == gib_s and gib_s % 1 == 0 else format_rate(round(gib_s * 8 * GIB))


class LogicalTopology(PeerFile):
    """Sizes of the logical dimensions, fastest first, which the file holds as texts."""

    dims: Annotated[list[Annotated[int, Field(ge=1, le=MAX_NODES)]], Field(min_length=1, max_length=16)] = Field(
        alias="logical-dims"
    )


def is_ns3(path: Path) -> bool:
    """Return whether a network file is one of the ns-3 back end; ConfigError if it cannot be read."""
    text = read_text(path, "a network file of ASTRA-sim")
    return bool(_KEY_LINE.match(text)) or (text.lstrip().startswith("{") and "topology_file" in text)


def read_ns3_network(path: Path, logical_topology: Path | None) -> tuple[FileSections, list[int]]:
    """Return what a configuration of ns-3 says, and the sizes of the logical dimensions, fastest first."""
    if logical_topology is None:
        raise ConfigError(f"{path}: a network of ns-3; expected --logical-topology-configuration FILE beside it")
    logical = read_model(logical_topology, LogicalTopology, _LOGICAL)
    text = read_text(path, _EXPECTED_NS3)
    config = _of_json(path, parsed(text, path, _EXPECTED_NS3)) if text.lstrip()[:1] == "{" else read_ns3(path)
    named = " ".join(config.words.get("TOPOLOGY_FILE", []))
    if not named:
        raise ConfigError(f"{path}: TOPOLOGY_FILE: missing; expected the file of the physical topology")
    # a dimension of one NPU has no links and no collectives of its own
    sizes = [size for size in logical.dims if size > 1] or logical.dims[:1]
    spec = {
        "name": "simai",
        "path": str(find_named(named, path)),
        "dims": "x".join(map(str, sizes)),
        "parallel_links": "last",
    }
    graph = topologies.build(spec)
    params = {key: value for key, value in spec.items() if key != "name"}
    part = ns3_part(config, graph)
    unused = [key for key in part.unused if key != "TOPOLOGY_FILE"] + logical.unknown_keys()
    sections: dict[str, Any] = {"topology": {"name": "simai", "params": params}, **part.sections}
    return FileSections(sections, tuple(unused)), sizes


def _of_json(path: Path, document: Mapping[str, Any]) -> Ns3Config:
    """Return the configuration of a JSON file, whose keys are those of config.txt in sections."""
    words: dict[str, list[str]] = {}
    for name, section in document.items():
        if not isinstance(section, dict):
            raise ConfigError(f"{path}: {name}: found {section!r:.60}; expected a section of keys")
        for key, value in section.items():
            words[_JSON_NAMES.get(key, key.upper())] = list(_words(value))
    down = [words.pop(key.upper(), ["0"]) for key in _LINK_DOWN]
    words["LINK_DOWN"] = [word for part in down for word in part[:1]]
    return Ns3Config(path, words)


def _words(value: object) -> Iterator[str]:
    """Return the words of config.txt for a value of JSON."""
    if isinstance(value, dict):
        # the maps of config.txt begin with their number of entries: {"100": 5} becomes "1 100 5"
        yield str(len(value))
        for rate, threshold in value.items():
            yield from (rate, str(threshold))
    else:
        yield str(int(value)) if isinstance(value, bool) else str(value)


def read_htsim_network(path: Path, arguments: Sequence[str]) -> tuple[FileSections, list[int]]:
    """Return what htsim's options say, and the sizes of the dimensions in the network file, fastest first.

    `arguments` are --htsim_opts and what follows it. Raises ConfigError: an option is unknown or there is no -topo.
    """
    dims = read_analytical(path, congestion_aware=None)[1]
    given = _parsed(arguments)
    if "-topo" not in given:
        raise ConfigError(f"{arguments[0]}: found no -topo; expected -topo FILE, htsim's tree")
    nodes = given.get("-nodes", str(math.prod(dims)))
    if nodes != str(math.prod(dims)):
        raise ConfigError(f"{arguments[0]}: -nodes: found {nodes}; expected {math.prod(dims)}, as {path} has")
    sections = {
        "topology": {
            "name": "htsim",
            "params": {"path": str(find_named(given["-topo"], path)), "dims": "x".join(map(str, dims))},
        },
        "network": {"mtu": _PACKET_BYTES, "header": f"{_HEADER_BYTES}B", "ack": f"{_ACK_BYTES}B", "acknowledged": True},
    }
    unused = [key for key in given if key not in {"-topo", "-nodes"}]
    return FileSections(sections, ("bandwidth", "latency", "TCP (windows of a round trip, no losses)", *unused)), dims


def _parsed(arguments: Sequence[str]) -> dict[str, str]:
    """Return the values of htsim's options by name, "" for options without a value."""
    found: dict[str, str] = {}
    words = list(arguments[1:])
    while words:
        word = words.pop(0)
        if word in _WITH_VALUE:
            if not words:
                raise ConfigError(f"{arguments[0]}: {word}: found no value; expected one")
            found[word] = words.pop(0)
        elif word in _SUBFLOW_ALGORITHMS:
            found[word] = words.pop(0) if word == "COUPLED_EPSILON" and words else ""
        else:
            known = ", ".join((*_WITH_VALUE, *_SUBFLOW_ALGORITHMS))
            raise ConfigError(f"{arguments[0]}: found {word!r}; expected one of {known}")
    return found
