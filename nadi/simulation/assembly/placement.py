"""The NPUs of the ranks of each job of a run, and messages without a model as traces between ranks."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nadi import inputs
from nadi.configuration.work import JobSection, TrafficSection
from nadi.errors import ConfigError
from nadi.et.files import MANIFEST_NAME as NAME
from nadi.inputs.arrays import Int32, Mask
from nadi.inputs.units import BITS_PER_BYTE, PS_PER_S, short
from nadi.simulation.assembly.resource_checks import check_trace
from nadi.topologies import NVSWITCH, Graph
from nadi.topologies.endpoints import NO_NUMBER
from nadi.workload import TraceSet, WorkloadError
from nadi.workload.generators import point_to_point
from nadi.workload.trace_sets import files_of, is_set, read_manifest

_NODES = 3  # nodes of the traces per message: a wait, a send and a receive
_EXPECTED = "numbers of NPUs and ranges, one for each rank, as 0-7 16 17"


def traffic_traces(section: TrafficSection, graph: Graph, npus: Int32, *, force: bool) -> TraceSet:
    """Return the traces of messages between ranks; perhaps of fewer ranks.

    WorkloadError and ConfigError refuse wrong files and numbers.

    Args:
        section: Section [traffic] of the run file.
        graph: The fabric (`Graph`).
        npus: int32[ranks], the NPU of each rank.
        force: Whether to make traces that need more memory than is free.
    """
    if section.file is not None:
        traces = point_to_point.flow_list(section.file, rank_of_numbers(graph))
        if traces.npus > len(npus):
            raise ConfigError(
                f"{section.file}: flows between {traces.npus} NPUs; expected at most {len(npus)}, those of the job"
            )
        return traces
    sizes = point_to_point.message_sizes(section.sizes or "")
    load, duration_ps = section.load or 0.0, section.duration or 0
    rate_bps = section.rate or network_rate_bps(graph, npus)
    # the expected number: their bytes over the mean size
    messages = len(npus) * load * rate_bps * duration_ps / PS_PER_S / (sizes.mean_bytes * BITS_PER_BYTE)
    check_trace(int(_NODES * messages), fewer="messages", node_bytes=point_to_point.NODE_BYTES, force=force)
    made = point_to_point.random_messages(
        len(npus), load, rate_bps, duration_ps, sizes, section.seed, point_to_point.arrivals(section.arrivals)
    )
    if not len(made.src):
        raise ConfigError(
            f"traffic: no message arrives within the duration, where {messages:.2g} are expected; expected a longer one"
        )
    return point_to_point.trace_set(made)


def rank_of_numbers(graph: Graph) -> dict[int, int] | None:
    """Return the NPU of each number of a GPU in the file of the network; None if the file has no numbers of its own.

    Args:
        graph: The fabric (`Graph`).
    """
    numbers = graph.numbers[: graph.npus]
    return {number: npu for npu, number in enumerate(numbers) if number != NO_NUMBER} or None


def network_rate_bps(graph: Graph, npus: Int32) -> int:
    """Return the minimum over NPUs of the total rate of links to other nodes than NVSwitches; if none, of all.

    Args:
        graph: The fabric (`Graph`).
        npus: int32[ranks], the NPU of each rank.
    """
    counts = graph.node_kind[graph.link_dst] != NVSWITCH
    rates = np.bincount(graph.link_src, np.where(counts, graph.link_rate_bps, 0), graph.nodes)[npus]
    # a fabric of NVSwitches alone
    if not rates.all():
        rates = np.bincount(graph.link_src, graph.link_rate_bps, graph.nodes)[npus]
    return int(rates.min())


def ranks_of(job: JobSection, graph: Graph) -> int:
    """Return the number of ranks (NPUs) of a job on a fabric: its key `gpus`, or the number that its traces have.

    Args:
        job: Section [[jobs]] of the run file.
        graph: The fabric (`Graph`).
    """
    if job.gpus is not None:
        return job.gpus
    if job.trace_set is not None and not isinstance(job.trace_set, str):
        return job.trace_set.npus
    if job.traffic is not None and job.traffic.file is not None:
        return point_to_point.flow_list(job.traffic.file, rank_of_numbers(graph)).npus
    path = job.traces
    if path is None or path.is_file():
        beside = "traffic" if path is None else "one trace for all"
        raise ConfigError(f'job "{job.name}": gpus is missing beside {beside}; expected a number')
    if is_set(path):
        return len(read_manifest(path / NAME).trace_of_npu)
    # files are numbered by rank
    return max(files_of(path).files) + 1


def placements(jobs: Sequence[JobSection], graph: Graph) -> list[list[Int32]]:
    """Return int32[ranks] for each copy of each job: the NPU of each rank; no NPU is in two of them.

    Jobs that name their NPUs get them first; the others follow in the order of the run file, on NPUs that are free.
    Raises ConfigError: too few NPUs are free, or a list is wrong.

    Args:
        jobs: Sections [[jobs]] of the run file.
        graph: The fabric (`Graph`).
    """
    is_free = np.ones(graph.npus, np.bool_)
    found: dict[int, list[Int32]] = {}
    # jobs that name their NPUs come first; sorting is stable
    for number in sorted(range(len(jobs)), key=lambda number: not jobs[number].names_npus):
        job = jobs[number]
        try:
            ranks = ranks_of(job, graph)
        except WorkloadError as error:
            raise ConfigError(f'job "{job.name}": {error}') from None
        npus = _chosen(job, graph, is_free, ranks * job.repeat)
        is_free[npus] = False
        found[number] = np.split(npus, job.repeat)
    return [found[number] for number in range(len(jobs))]


def _chosen(job: JobSection, graph: Graph, is_free: Mask, count: int) -> Int32:
    """Return the NPUs of all copies of a job, copy after copy."""
    if job.names_npus:
        return _listed(job, graph, is_free, count)
    free = np.flatnonzero(is_free).astype(np.int32)
    if len(free) < count:
        copies = f"{job.repeat} copies of {count // job.repeat}" if job.repeat > 1 else str(count)
        raise ConfigError(
            f'job "{job.name}": needs {copies} NPUs, {len(free)} of the {graph.npus} on the fabric are free; expected '
            "fewer, or a larger fabric"
        )
    seed = job.scattered_seed
    if seed is not None:
        return np.random.default_rng(seed).permutation(free)[:count]
    if job.placement == "rail":
        # rail by rail: place within the host first, then the host
        free = free[np.lexsort((graph.host[free], _places(graph)[free]))]
    return free[:count]


def _places(graph: Graph) -> Int32:
    """Return int32[npus]: the index of each NPU among those of its host."""
    by_host = np.argsort(graph.host, kind="stable")
    ordered = graph.host[by_host]
    place = np.empty(graph.npus, np.int32)
    # searchsorted finds the first NPU of the same host: for hosts 0 0 1 1 that is 0 0 2 2, and the places are 0 1 0 1
    place[by_host] = np.arange(graph.npus) - np.searchsorted(ordered, ordered)
    return place


def _listed(job: JobSection, graph: Graph, is_free: Mask, count: int) -> Int32:
    """Return the NPUs that a job lists, or that its file lists."""
    if isinstance(job.placement, str):
        label, numbers = job.placement, list(_numbers(Path(job.placement), graph.npus))
    else:
        label, numbers = "placement", list(job.placement)
    where = f'job "{job.name}": {label}'
    if len(numbers) != count:
        raise ConfigError(f"{where}: found {len(numbers)} NPUs; expected {count}, one for each rank")
    wrong = next((npu for npu in numbers if npu >= graph.npus), None)
    if wrong is not None:
        raise ConfigError(f"{where}: found NPU {wrong}; expected 0 to {graph.npus - 1}")
    npus = np.array(numbers, np.int32)
    # counts above 1 for NPUs named twice, and above 0 for taken ones
    taken = np.flatnonzero(np.bincount(npus, minlength=graph.npus) > is_free)
    if len(taken):
        raise ConfigError(f"{where}: NPU {taken[0]} has another rank, too; expected each NPU once")
    return npus


def _numbers(path: Path, npus: int) -> Iterator[int]:
    """Yield the numbers in a file of NPUs and ranges."""
    with inputs.refusing(path, _EXPECTED, ConfigError, UnicodeDecodeError):
        text = inputs.read_text(path)
    # comments end with their line, commas count as blanks
    for word in re.sub(r"#[^\n]*+", " ", text).replace(",", " ").split():
        found = re.fullmatch(r"([0-9]{1,9}+)(?:-([0-9]{1,9}+))?+", word)
        if found is None:
            raise ConfigError(f"{path}: found {short(word)}; expected {_EXPECTED}")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last >= npus:
            raise ConfigError(f"{path}: found {word}; expected NPUs from 0 to {npus - 1}")
        yield from range(first, last + 1)
