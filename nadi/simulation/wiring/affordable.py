"""Refuses what this machine cannot hold, or would run for more than a day; `--force` has it tried."""

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
"""Packet-hops of one worker, or
MESSAGES_PER_S messages at message level: what machines of 2025 do at least."""
MESSAGES_PER_S = 1e6
LONGEST_S = 86_400.0
ROW_BYTES = 60
"""Of a trace node at closed forms, while it runs and is looked at: seen with 10^6 to 10^7 of them."""
NODE_BYTES = 4000
"""Of a trace, while it is made: seen with traces of 10^5 nodes."""
_HOUR_S = 3600


def check_fabric(topology: str | Path | Mapping[str, object], *, force: bool = False) -> None:
    """Refuse a network that takes more memory than is free.

    Raises:
        ConfigError: it does.
        TopologyError: its parameters are wrong.
    """
    said = topologies.extent(topology)
    if said is None or force:
        return
    free = available_bytes()
    if free is not None and said.peak_bytes > free:
        label = topologies.format_spec(topology) if isinstance(topology, Mapping) else topology
        raise ConfigError(
            f"{label}: {said.nodes:,} nodes and {said.cables:,} cables would take about {_gb(said.peak_bytes)} of "
            f"memory, {_gb(free)} are free; expected a smaller fabric, or --force"
        )


def check_run(own: Estimate, total: Estimate, settings: Settings, workers: int, *, force: bool = False) -> None:
    """Refuse a run that takes more memory than is free, or more than a day.

    Args:
        own: what the NPUs of this process do.
        total: what all do.
        settings: of the run.
        workers: who share the work.
        force: refuse nothing.

    Raises:
        ConfigError: it does.
    """
    if force:
        return
    free = available_bytes()
    if free is not None and own.memory_bytes > free:
        raise ConfigError(
            f"{total.messages:,.0f} messages between {total.pairs:,.0f} pairs of NPUs would take about "
            f"{_gb(own.memory_bytes)} of memory, {_gb(free)} are free; expected a smaller run, or --force"
        )
    whole = settings.fidelity.act is not None
    rate = MESSAGES_PER_S if whole else HOPS_PER_S * workers
    wall_s = work(total, settings) / rate
    if wall_s > LONGEST_S:
        what = "messages" if whole else f"packet-hops ({total.packets:.3g} packets)"
        raise ConfigError(
            f"{work(total, settings):.3g} {what} would take about {wall_s / _HOUR_S:,.0f} hours at {rate:.3g} a "
            "second; expected less than 24, or --force"
        )


def schedule_bytes(*, force: bool = False) -> int | None:
    """Memory that plans of collectives may take while they are made, as CollectiveSettings asks; None = any."""
    return None if force else available_bytes()


def check_rows(rows: int, *, force: bool = False) -> None:
    """Refuse a run at closed forms that takes more memory than is free.

    Args:
        rows: trace nodes of one NPU of each class.
        force: refuse nothing.

    Raises:
        ConfigError: it does.
    """
    free = available_bytes()
    if not force and free is not None and rows * ROW_BYTES > free:
        raise ConfigError(
            f"{rows:,} trace nodes of NPUs that all do something else would take about {_gb(rows * ROW_BYTES)} of "
            f"memory, {_gb(free)} are free; expected a smaller run, or --force"
        )


def check_counters(graph: Graph, program: Program, own: Estimate) -> None:
    """Refuse a run in which a link would send more than its counter holds.

    Raises:
        ConfigError: one would, of what this process's NPUs send.
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
    """What refuses a program of all NPUs as `check_run` does."""

    def check(program: Program) -> None:
        expected = estimate(graph, program, settings)
        check_run(expected, expected, settings, workers, force=force)
        check_counters(graph, program, expected)

    return check


def check_trace(
    nodes: int, *, fewer: str = "layers or iterations", node_bytes: int = NODE_BYTES, force: bool = False
) -> None:
    """Refuse to make a trace that takes more memory than is free; `fewer` is what makes it smaller.

    Raises:
        ConfigError: it does.
    """
    free = available_bytes()
    if not force and free is not None and nodes * node_bytes > free:
        raise ConfigError(
            f"a trace of {nodes:,} nodes would take about {_gb(nodes * node_bytes)} of memory, {_gb(free)} are free; "
            f"expected fewer {fewer}, or --force"
        )


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this process may still take: what the machine has free and its control groups allow; None unknown.

    Args:
        root: of the file system that holds proc and sys.
    """
    found = [*_of_machine(root), *_of_groups(root)]
    return min(found) if found else None


def _of_machine(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _of_groups(root: Path) -> Iterator[int]:
    """What each control group above this process allows, beside what is taken; files in memory can be given back."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        first = controllers == "memory"
        if controllers and not first:
            continue
        base = root / ("sys/fs/cgroup/memory" if first else "sys/fs/cgroup")
        limit, usage = ("memory.limit_in_bytes", "memory.usage_in_bytes") if first else ("memory.max", "memory.current")
        inside = Path(path.strip("/"))
        for folder in (base / inside, *(base / above for above in inside.parents)):
            most, taken = (_number(folder / name) for name in (limit, usage))
            if most is not None and taken is not None:
                files = next(
                    (int(s.split()[1]) for s in _lines(folder / "memory.stat") if s.startswith("inactive_f")), 0
                )
                yield max(most - max(taken - files, 0), 0)


def _number(path: Path) -> int | None:
    """The number that a file holds; None where it holds none, as "max"."""
    text = next(iter(_lines(path)), "")
    return int(text) if text.isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:,.1f} GB"
