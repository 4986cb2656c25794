"""How runs scale with workers: measured on this machine, and projected for as many ranks as wanted.

    python scripts/scaling_study.py --out scaling            some ten minutes on a quiet machine
    python scripts/scaling_study.py --out scaling --quick    under a minute, for a look

Strong and weak scaling, and what a meeting costs, are measured with `nadi bench` in processes of their own, ways of
running in turn, medians over the turns. The projection records one run for each number of ranks and replays some of
its logical processes alone, see nadi/studies/benchmarks/instruments/recording.py; docs/explanation/performance.md
explains the results.
"""

import argparse
import csv
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

import nadi
import pdes
import topologies
from nadi.configuration.sections import NetworkSection
from nadi.launching.python import nadi_command
from nadi.simulation.wiring.partitioning import divide, traffic_load
from nadi.studies.benchmarks.bench import BENCHES
from nadi.studies.benchmarks.instruments.meeting_costs import gather_costs
from nadi.studies.benchmarks.instruments.parcel_costs import ParcelCosts, parcel_costs
from nadi.studies.benchmarks.instruments.recording import (
    Recording,
    WindowCost,
    busiest_ns,
    exchange,
    fit,
    projected_s,
    rank_sums,
    record_windows,
    replay,
)
from nadi.studies.benchmarks.scaling import MPIEXEC, run_side_by_side
from partition import DEFAULT_METHOD, PartitionError
from pdes.instruments import (
    CROSSING_WORDS,
    WORD_BYTES,
    Meeting,
    ParcelExchange,
    headers_of,
    meeting_at,
    new_crew,
    no_parcels,
    parcel_words,
    send_all,
    take_all,
    team_in,
    team_words,
)
from pdes.kernels import Directory, kernel
from topologies.units import parse_bytes

COPIES, THREADS, PROCESSES, RANKS, THROUGH_MPI = "copies", "threads", "processes", "ranks", "ranks through MPI"
WAYS = (THREADS, PROCESSES, RANKS, THROUGH_MPI)
BEGUN = time.perf_counter()
PROBE_ROUNDS, PROBE_EACH = 2000, 20
PROBE_MESSAGES = (1, 8, 16)
PROBE_RECORDS = 32
PROBE_WORDS = parcel_words(PROBE_RECORDS, CROSSING_WORDS - 1)
DISTURBED = 0.05
"""Share of all cores' time above which others have disturbed a measurement."""
DEFAULT_ALPHA_US = 12.0
DEFAULT_MESSAGE_US = 1.0
NO_COSTS = ParcelCosts(0.0, 0.0, 0.0, 0.0)
QUICK = {
    "topology": "fat-tree:k=8,rate=100Gbps,delay=1us",
    "size": "1MiB",
    "runs": 2,
    "turns": 1,
    "patience": 0.0,
    "tries": 1,
    "weak_npus": 64,
    "weak_size": "1MiB",
    "sync_size": "256KiB",
    "npus": [64, 128],
    "ranks": [1, 2, 4, 16],
    "projection_size": "256KiB",
    "repeats": 2,
    "probes": 1,
}
"""What --quick sets where the command line says nothing."""
FULL = {
    "topology": "fat-tree:k=16,rate=100Gbps,delay=1us",
    "size": "4MiB",
    "runs": 3,
    "turns": 5,
    "patience": 20.0,
    "tries": 4,
    "weak_npus": 512,
    "weak_size": "4MiB",
    "sync_size": "16MiB",
    "npus": [1024, 4096, 16384],
    "ranks": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
    "projection_size": "1MiB",
    "repeats": 3,
    "probes": 3,
}


def main() -> None:
    """Run the study."""
    args = arguments()
    if args.probe:
        probe()
        return
    args.out.mkdir(parents=True, exist_ok=True)
    facts, rows = machine(args), {}
    capacity = {}
    if "strong" not in args.skip:
        rows["strong"], capacity = strong(args)
        write_csv(args.out, "strong", rows)
    if "weak" not in args.skip:
        rows["weak"] = weak(args)
        write_csv(args.out, "weak", rows)
    sync = Sync()
    if "sync" not in args.skip:
        rows["sync"], sync = sync_costs(args)
        write_csv(args.out, "sync", rows)
    sync = sync.given(args)
    if "projection" not in args.skip:
        rows["projection"] = beside(args, rows.get("strong", []), capacity, sync) + projection(args, sync)
        write_csv(args.out, "projection", rows)
    facts |= {"sync_us": sync.as_dict(), "ended": now(), "load_at_end": os.getloadavg()}
    (args.out / "machine.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    say(f"wrote {args.out / 'machine.json'}")
    plot(args.out, rows)


def arguments() -> argparse.Namespace:
    """The command line, with defaults filled in."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, default=Path("scaling-study"), metavar="DIR", help="where the results go")
    add("--quick", action="store_true", help="small problems and one turn")
    add("--skip", nargs="*", default=[], choices=["strong", "weak", "sync", "projection"], help="leave these out")
    add("--bench", default="permutation", choices=list(BENCHES), help="traffic")
    add("--topology", metavar="SPEC", help="fabric of strong scaling")
    add("--size", metavar="BYTES", help="message of strong scaling")
    add(
        "--workers",
        type=int,
        nargs="+",
        default=[*range(2, max(cores, 2) + 1)],
        metavar="N",
        help="default: 2 to all cores",
    )
    add("--ways", nargs="+", default=list(WAYS), choices=WAYS, metavar="WAY", help=f"of {', '.join(WAYS)}")
    add("--runs", type=int, metavar="N", help="of each process; its fastest counts")
    add("--turns", type=int, metavar="N", help="of all ways; the median counts")
    add("--patience", type=float, metavar="SECONDS", help="wait so long for a quiet machine before each")
    add("--tries", type=int, metavar="N", help="of a measurement that others disturb; the least disturbed counts")
    add("--weak-npus", type=int, metavar="N", help="NPUs of each worker")
    add("--weak-size", metavar="BYTES", help="message of weak scaling")
    add("--fabric", default="fat-tree:npus={npus},rate=100Gbps,delay=1us", help="of weak scaling and projection")
    add("--sync-topology", default="fat-tree:k=4,rate=1Gbps,delay=1us", help="fabric with nearly empty windows")
    add("--sync-size", metavar="BYTES", help="message there")
    add("--npus", type=int, nargs="+", metavar="N", help="sizes of the projection")
    add("--ranks", type=int, nargs="+", metavar="R", help="ranks of the projection")
    add("--partitioner", metavar="NAME", default=DEFAULT_METHOD, help="partition method (docs/explanation/parallel.md)")
    add("--projection-size", metavar="BYTES", help="message of the projection")
    add("--windows-limit", type=int, metavar="N", help="record so many only; biased to busy windows")
    add("--lps-per-rank", type=int, default=1, metavar="N")
    add("--replays", type=int, default=6, metavar="N", help="logical processes that are replayed for each number")
    add("--repeats", type=int, metavar="N", help="of each replay; the least of each window counts")
    add("--probes", type=int, metavar="N", help="starts of a bare exchange between two ranks; the least counts")
    add("--ranks-per-node", type=int, nargs="+", default=[1, 32], metavar="N", help="that share memory")
    add("--inside-us", type=float, help="two workers that share memory; default: measured here")
    add("--alpha-us", type=float, help="fixed cost of an exchange between nodes; default: measured here")
    add("--beta-us", type=float, default=3.0, help="of an exchange between nodes: a cluster's latency (assumed)")
    add("--message-us", type=float, help="for each other node but the first; default: measured here")
    add("--line-us", type=float, default=0.1, help="a cache line of a core of the same node, far away (assumed)")
    add("--release-us", type=float, default=0.03, help="for each further worker that reads one line (assumed)")
    add("--gbps", type=float, nargs="+", default=[100.0], help="of a node's network (assumed)")
    add("--probe", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name, value in (QUICK if args.quick else FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if not MPIEXEC.exists():
        say(f"{MPIEXEC}: not found; leaving MPI ranks out")
        args.ways = [way for way in args.ways if way not in {RANKS, THROUGH_MPI}]
    return args


def say(text: str) -> None:
    """A line of progress."""
    print(f"{time.perf_counter() - BEGUN:6.0f} s  {text}", flush=True)


def now() -> str:
    """Date and time."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def machine(args: argparse.Namespace) -> dict[str, object]:
    """What the figures were measured with."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = {line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")}
    packages = ("numba", "llvmlite", "numpy", "mpi4py", "mpich", "pymetis")
    return {
        "begun": now(),
        "cpu": ", ".join(sorted(models)) or platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "load_at_begin": os.getloadavg(),
        "niceness": os.nice(0),
        "nadi": nadi.__version__,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "arguments": {name: str(value) for name, value in vars(args).items()},
    }


def version(package: str) -> str | None:
    """Of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# Measured.


@dataclass(frozen=True)
class Problem:
    """A benchmark on a fabric."""

    bench: str
    topology: str
    size: str
    partitioner: str = DEFAULT_METHOD

    def divided(self, lps: int) -> tuple:
        """Fabric, program, settings, the LP of each node, as in `nadi bench`, and the work expected of each LP."""
        graph = topologies.build(self.topology)
        program = BENCHES[self.bench].program(graph, parse_bytes(self.size), 1)
        load = traffic_load(graph, program, NetworkSection())
        owner = np.zeros(graph.nodes, np.int32)
        if lps > 1:
            owner = divide(graph, lps, self.partitioner, load, NetworkSection())[0].owner
        settings = pdes.Settings(seed=1, record_nodes=False, record_flows=False, nvlink_framing=False)
        return graph, program, settings, owner, np.bincount(owner, weights=load.weights.node)


def commands(way: str, workers: int, arguments: list[str]) -> list[list[str]]:
    """What to start at the same time."""
    bench = nadi_command(["bench", *arguments, "--json", "--quiet"])
    if way == COPIES:
        return [bench] * workers
    if way in {RANKS, THROUGH_MPI}:
        return [[str(MPIEXEC), "-n", str(workers), *bench, *["--no-share-memory"] * (way == THROUGH_MPI)]]
    return [[*bench, "--workers", str(workers), "--backend", way]]


@dataclass(frozen=True)
class Turn:
    """What processes side by side have said, and the share of all cores' time that others took meanwhile."""

    figures: list[dict]
    others: float

    @property
    def rate(self) -> float:
        """Packet-hops per second of all of them."""
        return sum(each["packet_hops_per_s"] for each in self.figures)


def measure(title: str, args: argparse.Namespace, jobs: dict[tuple, list[list[str]]]) -> dict[tuple, list[Turn]]:
    """Every job in every turn; one that others disturbed is done again, at most --tries times."""
    found = {job: [] for job in jobs}
    for turn in range(args.turns):
        for job, started in jobs.items():
            tries = []
            while len(tries) < args.tries and not (tries and tries[-1].others < DISTURBED):
                wait_for_quiet(args.patience)
                before = cpu_seconds()
                figures = run_side_by_side(started)
                own, all_of_it, cores = (after - then for after, then in zip(cpu_seconds(), before, strict=True))
                tries.append(Turn(figures, max(0.0, (all_of_it - own) / cores)))
            found[job].append(min(tries, key=lambda each: each.others))
            last = found[job][-1]
            say(
                f"{title}, turn {turn + 1} of {args.turns}: {job[1]} {job[0]}: {last.rate / 1e6:.1f} M/s; "
                f"others had {last.others:.0%}, {len(tries)} tries"
            )
    return found


def cpu_seconds() -> tuple[float, float, float]:
    """Seconds that cores were busy for this process and those it has waited for, for anyone, and could have been."""
    own = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    stat = Path("/proc/stat")
    if not stat.exists():
        return own, own, time.monotonic()
    ticks = [int(word) for word in stat.read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]]
    total, idle = sum(ticks), ticks[3] + ticks[4]
    return own, (total - idle) / os.sysconf("SC_CLK_TCK"), total / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(patience_s: float) -> None:
    """Until others leave the cores alone for a second, or patience ends."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        before = cpu_seconds()
        time.sleep(1.0)
        _, busy, total = (after - then for after, then in zip(cpu_seconds(), before, strict=True))
        if busy < DISTURBED * total:
            return


def median_rate(turns: list[Turn]) -> float:
    """Packet-hops per second."""
    return statistics.median(turn.rate for turn in turns)


def spread(turns: list[Turn]) -> dict[str, float]:
    """Median and extremes, for a row."""
    return {
        "packet_hops_per_s": median_rate(turns),
        "least_per_s": min(turn.rate for turn in turns),
        "most_per_s": max(turn.rate for turn in turns),
        "wall_s": statistics.median(turn.figures[0]["wall_s"] for turn in turns),
        "windows": turns[0].figures[0]["windows"],
        "others": statistics.fmean(turn.others for turn in turns),
    }


def strong(args: argparse.Namespace) -> tuple[list[dict], dict[int, float]]:
    """One problem on more and more workers; capacity: what as many independent copies reach, over one."""
    what = [args.bench, "--topology", args.topology, "--size", args.size, "--runs", str(args.runs)]
    jobs = {(COPIES, n): commands(COPIES, n, what) for n in [1, *args.workers]}
    jobs |= {(way, n): commands(way, n, what) for n in args.workers for way in args.ways}
    found = measure("strong", args, jobs)
    digests = {each["digest"] for turns in found.values() for turn in turns for each in turn.figures}
    if len(digests) > 1:
        raise SystemExit(f"defect: {len(digests)} different digests")
    serial = median_rate(found[COPIES, 1])
    capacity = {n: median_rate(found[COPIES, n]) / serial for n in [1, *args.workers]}
    rows = []
    for (way, workers), turns in found.items():
        row = {"way": way, "workers": workers, "topology": args.topology, **spread(turns)}
        speed_up = row["packet_hops_per_s"] / serial
        row |= {"speed_up": speed_up, "capacity": capacity[workers], "efficiency": speed_up / capacity[workers]}
        rows.append(row)
        say(f"  {workers} {way}: {row['packet_hops_per_s'] / 1e6:.1f} M/s, {speed_up:.2f} x, {row['efficiency']:.0%}")
    return rows, capacity


def weak(args: argparse.Namespace) -> list[dict]:
    """As many NPUs for each worker; efficiency: over as many copies of the smallest problem side by side."""

    def what(workers: int) -> list[str]:
        fabric = args.fabric.format(npus=args.weak_npus * workers)
        return [args.bench, "--topology", fabric, "--size", args.weak_size, "--runs", str(args.runs)]

    jobs = {(COPIES, n): commands(COPIES, n, what(1)) for n in [1, *args.workers]}
    jobs |= {(way, n): commands(way, n, what(n)) for n in args.workers for way in args.ways}
    found = measure("weak", args, jobs)
    serial = median_rate(found[COPIES, 1])
    rows = []
    for (way, workers), turns in found.items():
        row = {"way": way, "workers": workers, "npus": turns[0].figures[0]["npus"], **spread(turns)}
        copies = median_rate(found[COPIES, workers])
        row |= {"speed_up": row["packet_hops_per_s"] / serial, "capacity": copies / serial}
        row["efficiency"] = row["packet_hops_per_s"] / copies
        rows.append(row)
        say(f"  {workers} {way}: {row['npus']} NPUs, {row['speed_up']:.2f} x, {row['efficiency']:.0%}")
    return rows


@dataclass
class Sync:
    """What meeting at the end of a window costs, in microseconds.

    Attributes:
        measured: of (way, workers).
        inside: of two workers that share memory.
        alpha: of an exchange between two nodes.
        message: of each further node.
        beta: of a cluster's network, once: all nodes send to all at the same time.
        line: of a cache line that another core of the node has written, far away from this one.
        further: of each further line that is read at the same time, as much of it as measured on lines of another core.
        release: of each further worker that reads the same line.
        parcels: of packing and unpacking, which all workers of a node do at the same time.
    """

    measured: dict[tuple[str, int], float] | None = None
    inside: float = 1.0
    alpha: float = DEFAULT_ALPHA_US
    message: float = DEFAULT_MESSAGE_US
    beta: float = 0.0
    line: float = 0.0
    further: float = 0.0
    release: float = 0.0
    parcels: ParcelCosts = NO_COSTS

    def given(self, args: argparse.Namespace) -> "Sync":
        """With what the command line says."""
        self.inside = self.inside if args.inside_us is None else args.inside_us
        self.alpha = self.alpha if args.alpha_us is None else args.alpha_us
        self.message = self.message if args.message_us is None else args.message_us
        self.beta, self.line, self.release = args.beta_us, args.line_us, args.release_us
        self.further = self.line * gather_costs().share
        graph, program, settings, owner, _ = Problem("permutation", args.sync_topology, args.sync_size).divided(2)
        self.parcels = parcel_costs(pdes.build_world(graph, program, settings, owner))
        return self

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        kept = {name: value for name, value in vars(self).items() if name not in {"measured", "parcels"}}
        return kept | self.parcels._asdict()

    def of_ranks(self, recording: Recording, ranks: int, per_node: int, gbps: float) -> dict[str, np.ndarray]:
        """Of so many ranks, so many of them to a node, of such a network: nanoseconds per term, float64[windows].

        From each node one message to each other one, which its ranks share among them. Every LP packs what it sends to
        other nodes, and looks through all that came to its node. Who sends or publishes looks at the lines of all
        workers twice, once all is packed and once all is done; then all read the line that says how they go on. Two
        workers that meet were measured on cores that may be close to each other, so both ways are as long again.
        """
        nodes = -(-ranks // per_node)
        widest = min(ranks, per_node)
        further = self.further * (widest - 2)
        release = self.release * (widest - 2)
        terms = {"inside": self.inside + 2 * self.line + further + release if widest > 1 else 0.0}
        if nodes > 1:
            _, others, packets, letters = exchange(recording, nodes, ranks)
            lps = recording.lps // ranks
            costs = self.parcels
            terms["exchange"] = self.alpha + self.message * (-(-others // min(ranks, per_node)) - 1)
            terms["latency"] = self.beta
            terms["packed"] = self.line + further if widest > 1 else 0.0
            terms["wire"] = packets * CROSSING_WORDS * WORD_BYTES * 8e-3 / gbps
            each = costs.look_ns * lps + (costs.pack_ns + costs.take_ns) / widest
            terms["parcels"] = (packets * each + costs.letter_ns * letters * lps) * 1e-3
        return {name: np.broadcast_to(us, recording.windows) * 1e3 for name, us in terms.items()}


def sync_costs(args: argparse.Namespace) -> tuple[list[dict], Sync]:
    """What is left of the time of a nearly empty window when the work of the slowest worker is taken off."""
    what = ["permutation", "--topology", args.sync_topology, "--size", args.sync_size, "--runs", str(args.runs)]
    jobs = {(way, n): commands(way, n, what) for n in args.workers for way in args.ways}
    found = measure("sync", args, jobs)
    rows, measured = [], {}
    for workers in args.workers:
        work_us, windows = empty_work(Problem("permutation", args.sync_topology, args.sync_size), workers, args)
        for way in args.ways:
            turns = found[way, workers]
            each = [turn.figures[0]["wall_s"] * 1e6 / turn.figures[0]["windows"] - work_us for turn in turns]
            measured[way, workers] = statistics.median(each)
            rows.append({
                "way": way,
                "workers": workers,
                "sync_us": measured[way, workers],
                "least_us": min(each),
                "most_us": max(each),
                "work_us": work_us,
                "windows": windows,
                "others": statistics.fmean(turn.others for turn in turns),
            })  # fmt: skip
            say(f"  {workers} {way}: {measured[way, workers]:.2f} us a window beside {work_us:.2f} us of work")
    sync = Sync(measured)
    least = min(args.workers)
    shared = [measured[way, least] for way in (RANKS, PROCESSES, THREADS) if (way, least) in measured]
    sync.inside = shared[0] if shared else sync.inside
    if (THROUGH_MPI, least) in measured:
        sync.alpha = measured[THROUGH_MPI, least]
        took = exchange_us(args)
        (few, few_us), *_, (many, many_us) = took.items()
        sync.message = (many_us - few_us) / (many - few)
        rows += [{"way": f"bare exchange, {n} messages", "workers": 2, "sync_us": us} for n, us in took.items()]
        say(f"  exchange of 1 message {few_us:.1f} us, each more {sync.message:.2f} us")
    return rows, sync


def empty_work(problem: Problem, workers: int, args: argparse.Namespace) -> tuple[float, int]:
    """Microseconds of the slowest worker's work in a window, on average, and the number of windows.

    All LPs on one worker, in the compiled loop; the slowest one's share of it by what it does in each window.
    """
    recorded = recorded_run(problem, workers, None, args)
    share = float(
        busiest_ns(recorded.recording, recorded.cost, workers).sum() / recorded.cost.of(recorded.recording).sum()
    )
    graph, program, settings, owner, _ = problem.divided(workers)
    runs = [pdes.run(pdes.build_world(graph, program, settings, owner)) for _ in range(max(3, args.repeats))]
    windows = recorded.recording.windows
    return statistics.median(run.wall_s for run in runs) * share * 1e6 / windows, windows


def exchange_us(args: argparse.Namespace) -> dict[int, float]:
    """Microseconds of an exchange between two ranks, by the number of messages each way; the least of some tries."""
    found = {}
    for _ in range(args.probes):
        wait_for_quiet(args.patience)
        command = [str(MPIEXEC), "-n", "2", sys.executable, __file__, "--probe"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout  # noqa: S603
        for width, took_us in json.loads(said).items():
            found[int(width)] = min(took_us, found.get(int(width), took_us))
    return dict(sorted(found.items()))


@kernel
def _trade_often(address: int, rounds: int) -> int:
    parcels = meeting_at(address).parcels
    for number in range(rounds):
        if send_all(parcels, number) != 0 or take_all(parcels, number) != 0:
            return 1
    return 0


def probe() -> None:
    """As a rank: exchanges of short parcels by the engine's own code, of some messages; prints microseconds of each."""
    from mpi4py import MPI  # noqa: PLC0415 - only ranks need it

    world = MPI.COMM_WORLD
    other = 1 - world.Get_rank()

    found = {}
    for width in PROBE_MESSAGES:
        words = np.zeros(3 * width * PROBE_WORDS, np.int64)
        begins = PROBE_WORDS * np.arange(3 * width)
        parcels = no_parcels([None])._replace(
            words=words,
            headers=headers_of(words),
            outgoing=begins[:width].copy(),
            incoming=begins[width:].copy(),
            record_words=np.array([CROSSING_WORDS - 1]),
            answers=np.arange(width),
            ranks=np.full(width, other),
        )
        words[begins[:width]] = PROBE_RECORDS
        team = team_in(np.zeros(team_words(1), np.int64))
        trade = ParcelExchange(MPI, world, world, team, 0, parcels, np.full(3 * width, PROBE_WORDS))
        meeting = Directory(Meeting(team, new_crew(1), np.zeros(1, np.int64), parcels))
        took = []
        for _ in range(PROBE_ROUNDS // PROBE_EACH):
            begun = time.perf_counter()
            if _trade_often(meeting.address, PROBE_EACH):
                raise SystemExit("MPI has failed")
            took.append((time.perf_counter() - begun) / PROBE_EACH)
        team.workers[0].window = PROBE_EACH - 1
        trade.close()
        found[width] = statistics.median(took[1:]) * 1e6
    if other == 1:
        print(json.dumps(found))


# Projected.


@dataclass(frozen=True)
class Recorded:
    """A recording, what its LPs cost, how far that is off, and what of it is before parcels are sent to other nodes."""

    recording: Recording
    cost: WindowCost
    error: float
    sent: WindowCost
    sent_error: float

    def hidden_ns(self, ranks: int, terms: dict[str, np.ndarray]) -> np.ndarray:
        """float64[windows]: time on the network in which the slowest rank still works on what goes to no other node.

        Parcels are on their way when the last rank has put in what it sends.
        """
        travel_ns = terms.get("latency", 0.0) + terms.get("wire", 0.0)
        busiest = busiest_ns(self.recording, self.cost, ranks)
        first = np.minimum(rank_sums(self.sent.of(self.recording), ranks).max(axis=1), busiest)
        return np.minimum(travel_ns, busiest - first)


def recorded_run(
    problem: Problem, lps: int, most_windows: int | None, args: argparse.Namespace, lps_per_node: int = 0
) -> Recorded:
    """Divide the problem as `nadi bench` does, record it, replay some LPs and fit their cost; lps_per_node: 0 = all."""
    graph, program, settings, owner, expected = problem.divided(lps)
    chosen = {int(expected.argmax()), *np.linspace(0, lps - 1, min(lps, args.replays)).round().astype(int).tolist()}
    sim = pdes.build_world(graph, program, settings, owner)
    recording = record_windows(sim, most_windows, sorted(chosen))
    replays = {}
    for lp in sorted(chosen):
        node = lp // (lps_per_node or lps)
        away = [other for other in range(lps) if other // (lps_per_node or lps) != node]
        repeats = [replay(graph, program, settings, owner, recording, lp, away) for _ in range(args.repeats)]
        replays[lp] = np.min([[each.spent_ns, each.sent_ns] for each in repeats], axis=0)
        if lps_per_node:
            spent, sent = replays[lp].mean(axis=1) / 1e3
            say(f"    LP {lp}: {spent:.1f} us a window, parcels are packed after {sent:.1f}")
    spent, sent = ({lp: each[row] for lp, each in replays.items()} for row in range(2))
    return Recorded(recording, *fit(recording, spent), *fit(recording, sent))


def beside(args: argparse.Namespace, measured: list[dict], capacity: dict[int, float], sync: Sync) -> list[dict]:
    """The projection of what strong scaling has measured, and by how much it is off."""
    if not measured or sync.measured is None:
        return []
    problem = Problem(args.bench, args.topology, args.size)
    serial = recorded_run(problem, 1, None, args)
    serial_s = projected_s(serial.recording, serial.cost, 1)
    rows = []
    for workers in args.workers:
        recorded = recorded_run(problem, workers, None, args)
        for row in measured:
            if row["workers"] != workers or row["way"] == COPIES:
                continue
            sync_ns = sync.measured[row["way"], workers] * 1e3
            terms = {"measured": np.full(recorded.recording.windows, sync_ns)}
            found = projected_row(recorded, serial_s, workers, terms)
            expected = found["speed_up"] * capacity[workers] / workers
            found |= {
                "problem": args.topology,
                "way": row["way"],
                "speed_up_of_capacity": expected,
                "measured_speed_up": row["speed_up"],
                "error_percent": 100 * (expected / row["speed_up"] - 1),
            }
            rows.append(found)
            say(
                f"  {workers} {row['way']}: projected {found['speed_up']:.2f} x, on this machine's capacity "
                f"{expected:.2f} x, measured {row['speed_up']:.2f} x, off by {found['error_percent']:+.0f} %"
            )
    return rows


def projected_row(recorded: Recorded, serial_s: float, ranks: int, terms: dict[str, np.ndarray]) -> dict:
    """Where the time of so many ranks goes; terms: of a meeting, ns of each window."""
    recording, cost = recorded.recording, recorded.cost
    sync_ns = np.sum(list(terms.values()), axis=0)
    busiest_s = float(busiest_ns(recording, cost, ranks).sum()) * 1e-9
    mean_s = float(cost.of(recording).sum()) * 1e-9 / ranks
    total_s = projected_s(recording, cost, ranks, sync_ns)
    return {
        "ranks": ranks,
        "lps": recording.lps,
        "windows": recording.windows,
        "hops_per_window_and_rank": float(recording.hops.sum()) / recording.windows / ranks,
        "serial_s": serial_s,
        "mean_s": mean_s,
        "busiest_s": busiest_s,
        "sync_s": float(sync_ns.sum()) * 1e-9,
        "total_s": total_s,
        "speed_up": serial_s / total_s,
        "efficiency": serial_s / total_s / ranks,
        "work_share": mean_s / total_s,
        "uneven_share": (busiest_s - mean_s) / total_s,
        "sync_share": float(sync_ns.sum()) * 1e-9 / total_s,
        "sync_us": float(sync_ns.mean()) * 1e-3,
        "window_ns": cost.window_ns,
        "crossing_ns": cost.crossing_ns,
        "hop_ns": cost.hop_ns,
        "fit_error": recorded.error,
    } | {f"{name}_us": float(of_windows.mean()) * 1e-3 for name, of_windows in terms.items()}


def projection(args: argparse.Namespace, sync: Sync) -> list[dict]:
    """Each fabric on each number of ranks."""
    rows = []
    for npus in args.npus:
        problem = Problem(args.bench, args.fabric.format(npus=npus), args.projection_size, args.partitioner)
        serial = recorded_run(problem, 1, args.windows_limit, args)
        serial_s = projected_s(serial.recording, serial.cost, 1)
        say(f"{npus} NPUs: {serial.recording.windows} windows, serial {serial_s:.2f} s")
        for ranks in args.ranks:
            try:
                lps = ranks * args.lps_per_rank
                per_node = max(args.ranks_per_node) * args.lps_per_rank
                each = per_node if 1 < per_node < lps else 0
                recorded = serial if lps == 1 else recorded_run(problem, lps, args.windows_limit, args, each)
            except PartitionError as error:
                say(f"  {ranks} ranks: {error}")
                break
            digests = {each.recording.results.digest for each in (serial, recorded) if each.recording.results}
            if len(digests) > 1:
                raise SystemExit(f"defect: {ranks} ranks gave another digest")
            ways = [(per_node, gbps) for per_node in args.ranks_per_node for gbps in args.gbps]
            for per_node, gbps in ways[: None if ranks > 1 else 1]:
                way = f"{per_node} a node" + (f", {gbps:g} Gb/s" if len(args.gbps) > 1 else "")
                terms = sync.of_ranks(recorded.recording, ranks, per_node, gbps)
                if 1 < per_node == max(args.ranks_per_node) < ranks:
                    terms["hidden"] = -recorded.hidden_ns(ranks, terms)
                row = {"problem": problem.topology, "npus": npus, "way": way}
                row |= projected_row(recorded, serial_s, ranks, terms)
                rows.append(row)
                say(
                    f"  {ranks} ranks, {way}: {row['speed_up']:.1f} x; work {row['work_share']:.0%}, "
                    f"uneven {row['uneven_share']:.0%}, sync {row['sync_share']:.0%} ({row['sync_us']:.1f} us: "
                    f"{', '.join(f'{name} {of_windows.mean() * 1e-3:.1f}' for name, of_windows in terms.items())})"
                )
    return rows


# Written.


def write_csv(out: Path, name: str, rows: dict[str, list[dict]]) -> None:
    """A table; columns in the order in which its rows bring them."""
    columns = list(dict.fromkeys(column for row in rows[name] for column in row))
    path = out / f"{name}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows[name])
    say(f"wrote {path}")


def plot(out: Path, rows: dict[str, list[dict]]) -> None:
    """Pictures of all tables in one page, and as PNG where kaleido is."""
    if importlib.util.find_spec("plotly") is None:
        say("no pictures: plotly is not installed; pip install 'nadi[plot]'")
        return
    from plotly import graph_objects as go  # noqa: PLC0415 - an extra
    from plotly.io import to_html  # noqa: PLC0415 - an extra

    figures = {}
    for name, title in (("strong", "Strong scaling"), ("weak", "Weak scaling")):
        figures[name] = go.Figure(layout={"title": f"{title}: speed-up over one worker", "xaxis_title": "workers"})
        for way in dict.fromkeys(row["way"] for row in rows.get(name, [])):
            own = [row for row in rows[name] if row["way"] == way]
            line = {"x": [row["workers"] for row in own], "y": [row["speed_up"] for row in own]}
            figures[name].add_scatter(**line, name=way, mode="lines+markers")
    figures["sync"] = go.Figure(layout={"title": "Meeting at the end of a window", "yaxis_title": "microseconds"})
    own = rows.get("sync", [])
    figures["sync"].add_bar(x=[f"{row['workers']} {row['way']}" for row in own], y=[row["sync_us"] for row in own])
    axes = {"xaxis": {"type": "log", "title": "ranks"}, "yaxis": {"type": "log", "title": "speed-up over one core"}}
    figures["projection"] = go.Figure(layout={"title": "Projection", **axes})
    projected = [row for row in rows.get("projection", []) if "npus" in row]
    for npus, way in dict.fromkeys((row["npus"], row["way"]) for row in projected):
        own = [row for row in projected if (row["npus"], row["way"]) == (npus, way)]
        line = {"x": [row["ranks"] for row in own], "y": [row["speed_up"] for row in own]}
        figures["projection"].add_scatter(**line, name=f"{npus:,} NPUs, {way}", mode="lines+markers")
    shown = {name: figure for name, figure in figures.items() if rows.get(name)}
    parts = [to_html(each, full_html=False, include_plotlyjs=number == 0) for number, each in enumerate(shown.values())]
    page = out / "scaling.html"
    page.write_text(
        "<!doctype html><meta charset='utf-8'><title>Scaling study</title>" + "".join(parts), encoding="utf-8"
    )
    say(f"wrote {page}")
    if importlib.util.find_spec("kaleido") is not None:
        for name, figure in shown.items():
            figure.write_image(out / f"{name}.png")
            say(f"wrote {out / name}.png")


if __name__ == "__main__":
    main()
