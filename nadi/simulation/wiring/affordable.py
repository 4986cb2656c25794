"""Checks that refuse runs which need more memory than this machine has, or more than a day; `--force` skips them."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import partition
import topologies
from nadi.errors import ConfigError
from nadi.simulation.wiring.estimate import Estimate, estimate, work
from nadi.simulation.wiring.in_network import with_reducers
from pdes import Settings
from topologies import Graph
from topologies.bounds import MAX_BYTES
from workload import Program
from workload.program.traffic import traffic

HOPS_PER_S = 5e6
"""Packet-hops per second of one worker, a lower bound for machines of 2025."""
MESSAGES_PER_S = 1e6
"""Messages per second at message level, a lower bound for machines of 2025."""
MAX_WALL_S = 86_400.0
"""Longest wall time of a run in seconds: one day."""
ROW_BYTES = 60
"""Memory in bytes per trace node of a run at closed forms and its analysis, measured with 10^6 to 10^7 nodes."""
NODE_BYTES = 4000
"""Memory in bytes per node of a trace during its generation, measured with traces of 10^5 nodes."""
_HOUR_S = 3600


def check_fabric(topology: str | Path | Mapping[str, object], *, force: bool = False) -> None:
    """Refuse a fabric that needs more memory than is free.

    Raises:
        ConfigError: The fabric needs too much memory.
        TopologyError: Parameters of the fabric are wrong.
    """
    extent = topologies.extent(topology)
    if extent is None or force:
        return
    free = available_bytes()
    if free is not None and extent.peak_bytes > free:
        label = topologies.format_spec(topology) if isinstance(topology, Mapping) else topology
        raise ConfigError(
            f"{label}: {extent.nodes:,} nodes and {extent.cables:,} cables would take about {_gb(extent.peak_bytes)} "
            f"of memory, {_gb(free)} are free; expected a smaller fabric, or --force"
        )


def check_run(own: Estimate, total: Estimate, settings: Settings, workers: int, *, force: bool = False) -> None:
    """Refuse a run that needs more memory than is free, or more than a day.

    Args:
        own: Work of the NPUs of this process.
        total: Work of all NPUs.
        settings: Settings of the run.
        workers: Number of workers that share the work.
        force: True = refuse nothing.

    Raises:
        ConfigError: The run needs too much memory or time.
    """
    if force:
        return
    free = available_bytes()
    if free is not None and own.memory_bytes > free:
        raise ConfigError(
            f"{total.messages:,.0f} messages between {total.pairs:,.0f} pairs of NPUs would take about "
            f"{_gb(own.memory_bytes)} of memory, {_gb(free)} are free; expected a smaller run, or --force"
        )
    message_level = settings.fidelity.is_message_level
    rate = MESSAGES_PER_S if message_level else HOPS_PER_S * workers
    wall_s = work(total, settings) / rate
    if wall_s > MAX_WALL_S:
        what = "messages" if message_level else f"packet-hops ({total.packets:.3g} packets)"
        raise ConfigError(
            f"{work(total, settings):.3g} {what} would take about {wall_s / _HOUR_S:,.0f} hours at {rate:.3g} a "
            "second; expected less than 24, or --force"
        )


def schedule_bytes(*, force: bool = False) -> int | None:
    """Return the memory in bytes for plans of collectives during their construction; None = unlimited."""
    return None if force else available_bytes()


def check_rows(rows: int, *, force: bool = False) -> None:
    """Refuse a run at closed forms that needs more memory than is free.

    Args:
        rows: Number of trace nodes of one NPU per class.
        force: True = refuse nothing.

    Raises:
        ConfigError: The run needs too much memory.
    """
    free = available_bytes()
    if not force and free is not None and rows * ROW_BYTES > free:
        raise ConfigError(
            f"{rows:,} trace nodes of distinct NPUs would take about {_gb(rows * ROW_BYTES)} of "
            f"memory, {_gb(free)} are free; expected a smaller run, or --force"
        )


def check_counters(graph: Graph, program: Program, own: Estimate) -> None:
    """Refuse a run if a link would send more bytes than its counter holds.

    Raises:
        ConfigError: The NPUs of this process would send too many bytes over a link.
    """
    if own.wire_bytes <= MAX_BYTES:
        return
    fabric, running, _ = with_reducers(graph, program)
    sent = traffic(running)
    share = own.wire_bytes / max(float(sent.bytes.sum()), 1.0)
    of_link = partition.link_loads(fabric, sent.src, sent.dst, sent.bytes * share)
    link = int(of_link.argmax())
    if of_link[link] > MAX_BYTES:
        ends = f"{fabric.node_name(fabric.link_src[link])} - {fabric.node_name(fabric.link_dst[link])}"
        raise ConfigError(
            f"link {ends} of {graph.name} would send about {of_link[link] / 1e12:,.1f} TB in the run; expected at most "
            f"{MAX_BYTES / 1e12:.1f} TB, which its counter holds"
        )


def checker(graph: Graph, settings: Settings, workers: int, *, force: bool = False) -> Callable[[Program], None]:
    """Return a function that checks programs of all NPUs as `check_run` and `check_counters` do."""

    def check(program: Program) -> None:
        expected = estimate(graph, program, settings)
        check_run(expected, expected, settings, workers, force=force)
        check_counters(graph, program, expected)

    return check


def check_trace(
    nodes: int, *, fewer: str = "layers or iterations", node_bytes: int = NODE_BYTES, force: bool = False
) -> None:
    """Refuse to generate a trace that needs more memory than is free; `fewer` names what makes it smaller.

    Raises:
        ConfigError: The trace needs too much memory.
    """
    free = available_bytes()
    if not force and free is not None and nodes * node_bytes > free:
        raise ConfigError(
            f"a trace of {nodes:,} nodes would take about {_gb(nodes * node_bytes)} of memory, {_gb(free)} are free; "
            f"expected fewer {fewer}, or --force"
        )


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory in bytes that this process may still use, by free memory and control groups; None = unknown.

    Args:
        root: Folder that contains proc and sys.
    """
    limits = [*_of_machine(root), *_of_groups(root)]
    return min(limits) if limits else None


def _of_machine(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _of_groups(root: Path) -> Iterator[int]:
    """Yield the unused memory of each control group above this process; cached files count as unused."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        is_v1 = controllers == "memory"  # version 2 of control groups lists no controllers
        if controllers and not is_v1:
            continue
        base = root / ("sys/fs/cgroup/memory" if is_v1 else "sys/fs/cgroup")
        limit, usage = ("memory.limit_in_bytes", "memory.usage_in_bytes") if is_v1 else ("memory.max", "memory.current")
        inside = Path(path.strip("/"))
        for folder in (base / inside, *(base / above for above in inside.parents)):
            maximum, used = (_number(folder / name) for name in (limit, usage))
            if maximum is not None and used is not None:
                files = next(
                    (int(s.split()[1]) for s in _lines(folder / "memory.stat") if s.startswith("inactive_f")), 0
                )
                yield max(maximum - max(used - files, 0), 0)


def _number(path: Path) -> int | None:
    """Return the number in a file; None if the file holds another text, as "max"."""
    text = next(iter(_lines(path)), "")
    return int(text) if text.isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:,.1f} GB"
