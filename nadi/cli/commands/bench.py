"""This machine: `nadi bench` measures its simulation speed, and `nadi doctor` what it lacks for a run."""

import importlib.util
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import typer

from nadi.cli.options import AsJson, BackendName, Quiet, WorkerCount, backend_of, benches, topology_names
from nadi.cli.output import print_document, print_json, print_table
from nadi.compiling import defect_text
from nadi.configuration import MAX_SEED
from nadi.errors import ConfigError
from nadi.inputs.units import GIB, MIB, parse_bytes_within
from nadi.launching.installation import code_command
from nadi.terminal import FittedTable, buffer_text, facts, name_column

MAX_RUNS = 10_000
_NAME = "Benchmark: permutation, roce, allreduce, hierarchical, pairs, flow, coupled, reuse, or trace (of files)."
_TOPOLOGY = "Fabric that replaces the benchmark's."
_SCALING = "Measure serial, two concurrent copies, two ranks with and without shared memory, processes, threads."


def register(app: typer.Typer) -> None:
    """Add the commands.

    Args:
        app: The application of typer.
    """
    app.command()(bench)
    app.command()(doctor)


def bench(
    name: str = typer.Argument("permutation", metavar="NAME", help=_NAME, autocompletion=benches),
    as_json: AsJson = False,
    topology: str = typer.Option("", "--topology", "-t", metavar="SPEC", help=_TOPOLOGY, autocompletion=topology_names),
    size: str = typer.Option("", metavar="BYTES", help="Size of each NPU's message, or of the all-reduce."),
    seed: int = typer.Option(1, min=0, max=MAX_SEED, help="Seed of the permutation and of ECMP."),
    runs: int = typer.Option(5, min=1, max=MAX_RUNS, help="Number of runs, of which the fastest counts."),
    workers: WorkerCount = 1,
    backend: BackendName = "threads",
    share_memory: bool = typer.Option(True, help="Whether MPI ranks of one node use shared memory."),
    scaling: bool = typer.Option(False, "--scaling", help=_SCALING),
    quiet: Quiet = False,
) -> None:
    """Measure packet-hops per second of a standard run, and the rate of a plain event heap on this machine."""
    if name == "trace":
        _measure_decoding(runs, as_json=as_json, quiet=quiet)
        return
    if name == "reuse":
        if topology or size:
            raise ConfigError(f"bench reuse: found {'--topology' if topology else '--size'}; expected neither")
        _measure_reuse(seed, runs, as_json=as_json, quiet=quiet)
        return
    from nadi.launching.ranks import connected_ranks

    ranks = connected_ranks(os.environ)
    from nadi.inputs.limits import MAX_BYTES
    from nadi.launching.progress import progress
    from nadi.launching.ranks import together
    from nadi.launching.workers import Workers
    from nadi.pdes.fidelity import FLUID
    from nadi.studies.benchmarks.bench import BENCHES, measure_pairs, run_bench

    with together(ranks):
        if name not in {*BENCHES, FLUID, "coupled"}:
            raise ConfigError(f"bench {name!r}: expected one of {', '.join(BENCHES)}, {FLUID}, coupled, reuse, trace")
        kind_of_workers = backend_of(backend, ranks)
        size_bytes = parse_bytes_within(size, MAX_BYTES) if size else 0
        if size and not size_bytes:
            raise ConfigError(f"--size {size}: found 0 bytes; expected more")
    if name not in BENCHES:
        from nadi.studies.benchmarks.bench import run_coupled_bench, run_flow_bench

        run_flows = run_flow_bench if name == FLUID else run_coupled_bench
        found = run_flows(spec=topology, size_bytes=size_bytes, seed=seed, runs=runs)
        print_document(found, _flows_table, as_json=as_json)
        return
    if scaling:
        with progress(quiet=quiet) as shown:
            pairs = measure_pairs(name, shown, topology=topology, size=size, runs=runs)
        print_document(pairs, lambda found: _scaling_table(name, found), as_json=as_json)
        return
    own = Workers(ranks, kind_of_workers, workers, share_memory=share_memory)
    with progress(quiet=quiet or ranks.rank > 0) as shown:
        figures = run_bench(name, shown, spec=topology, size_bytes=size_bytes, seed=seed, runs=runs, workers=own)
    if ranks.rank == 0:
        print_document(figures, lambda found: _figures_table(name, found, runs), as_json=as_json)


def _figures_table(bench_name: str, figures: dict[str, Any], num_runs: int) -> FittedTable:
    """Return the table of the figures of `run_bench`."""
    rows = [
        ("packet-hops", f"{figures['packet_hops']:,} in {figures['wall_s']:.3f} s (fastest of {num_runs})"),
        ("packet-hops/s", f"{figures['packet_hops_per_s'] / 1e6:.2f} M"),
        ("event heap/s", f"{figures['calibration_per_s'] / 1e6:.2f} M pop and push pairs, 10,000 pending"),
        ("ratio", f"{figures['ratio']:.2f}"),
        ("set-up", f"{figures['setup_s']:.2f} s, first event after {figures['first_event_s']:.2f} s"),
        ("peak memory", f"{figures['peak_rss_bytes'] / MIB:,.0f} MiB"),
        ("digest", figures["digest"]),
    ]
    title = f"{bench_name} on {figures['topology']}, {figures['npus']} NPUs, {buffer_text(figures['bytes'])} each"
    return facts(title, rows)


def _flows_table(figures: dict[str, Any]) -> FittedTable:
    """Return the table of the figures of `run_flow_bench`."""
    rows = [
        ("flow events", f"{figures['flow_events']:,} in {figures['wall_s']:.3f} s (fastest of {figures['runs']})"),
        ("messages", f"{figures['messages']:,}"),
        ("flow events/s", f"{figures['flow_events_per_s']:,.0f}"),
        ("in the solver", f"{figures['solver_share']:.0%} of the time, {figures['flows_per_solution']:.0f} flows each"),
        ("peak memory", f"{figures['peak_rss_bytes'] / MIB:,.0f} MiB"),
        ("digest", figures["digest"]),
    ]
    return facts(
        f"{figures['bench']} on {figures['topology']}, {figures['npus']} NPUs, {buffer_text(figures['bytes'])} each",
        rows,
    )


def _measure_decoding(num_runs: int, *, as_json: bool, quiet: bool) -> None:
    """Measure and print the speed of reading traces, the fastest of some runs."""
    from nadi.launching.progress import progress
    from nadi.studies.benchmarks.trace_decoding import run_decoding_bench

    with progress(quiet=quiet) as shown:
        rates = run_decoding_bench(shown, runs=num_runs)
    rates_columns = "M nodes/s", ("all attributes kept", 1), "protobuf M nodes/s", "ratio"
    columns = "nodes", ("bytes/node", 1), *rates_columns, ("peak memory (MiB)", 1), ("memory before (MiB)", 2)
    title = f"traces into tables, on one core (fastest of {num_runs})"
    table = FittedTable(title, name_column("kind of nodes"), *columns)
    for row in rates["files"]:
        speeds = (f"{row[key] / 1e6:.2f}" for key in ("nodes_per_s", "kept_nodes_per_s", "protobuf_nodes_per_s"))
        memory = (f"{row[key] / MIB:,.0f}" for key in ("peak_rss_bytes", "rss_before_bytes"))
        node_bytes = f"{row['file_bytes'] / row['nodes']:,.0f}"
        table.add_row(row["kind"], row["nodes"], node_bytes, *speeds, f"{row['ratio']:.1f}", *memory)
    print_document(rates, lambda _: table, as_json=as_json)


def _measure_reuse(seed: int, num_runs: int, *, as_json: bool, quiet: bool) -> None:
    """Measure and print the speed of a step with and without replay; end with code 1 if their digests differ."""
    from nadi.launching.progress import progress
    from nadi.studies.benchmarks.bench import run_reuse_bench

    with progress(quiet=quiet) as shown:
        figures = run_reuse_bench(shown, seed=seed, runs=num_runs)
    print_document(figures, _reuse_table, as_json=as_json)
    if not figures["same_digest"]:
        raise typer.Exit(1)


def _reuse_table(figures: dict[str, Any]) -> FittedTable:
    """Return the table of the figures of `run_reuse_bench`."""
    comparison = "equal" if figures["same_digest"] else f"but {figures['digest_off']} by all packets"
    rows = [
        ("packet-hops", f"{figures['packet_hops']:,}"),
        ("with replay", f"{figures['exact_s']:.3f} s (fastest of {figures['runs']})"),
        ("all packets", f"{figures['off_s']:.3f} s"),
        ("ratio", f"{figures['ratio']:.1f}"),
        ("simulated", f"{figures['episodes_simulated']:,} episodes, {figures['episode_hops']:,} packet-hops"),
        ("replayed", f"{figures['episodes_replayed']:,} episodes, {figures['replayed_hops']:,} packet-hops"),
        ("records", f"{figures['record_bytes'] / MIB:,.2f} MiB"),
        ("digest", f"{figures['digest']}, {comparison}"),
    ]
    return facts(f"{figures['model']}, {figures['plan']} on {figures['cluster']}", rows)


def _scaling_table(bench_name: str, pairs: dict[str, Any]) -> FittedTable:
    """Return the table of the rates of `measure_pairs`."""
    columns = "M packet-hops/s", "over serial", ("of capacity", 1), ("waiting", 2), ("turns", 3)
    table = FittedTable(f"{bench_name}: two workers against one", name_column("workers"), *columns)
    for row in pairs["rows"]:
        turns = " ".join(f"{rate / 1e6:.1f}" for rate in row["of_turns"])
        speed, speed_up = f"{row['packet_hops_per_s'] / 1e6:.2f}", f"{row['speed_up']:.3f}"
        table.add_row(row["workers"], speed, speed_up, f"{row['share']:.3f}", f"{row['waiting']:.1%}", turns)
    return table


MIN_PYTHON = (3, 11)
MIN_MEMORY_BYTES = 8 * GIB  # Memory for fabrics of 16,384 NPUs
PACKAGES = ("numpy", "numba", "pyarrow", "protobuf", "pydantic")
_MPI_PROBE = (
    "from mpi4py import MPI; v = MPI.Get_library_version().split(chr(10))[0].strip(chr(0)); "
    "MPI.COMM_WORLD.Get_rank() or print('<', MPI.COMM_WORLD.Get_size(), v, '>', flush=True)"
)
_MPI_ANSWER = re.compile(r"< (\d++) ([^<>]*+)>")  # Launchers forward output in pieces that need not end with a line
_MPI_TIMEOUT_S = 60  # Seconds after which the MPI check fails
_RANKS = 2
_COMPILE = "Only compile the kernels that runs need into the cache."


class CheckResult(NamedTuple):
    """The result of one check."""

    ok: bool  # Whether the check passed
    what: str  # Subject of the check
    found: str  # Observation
    fix: str = ""  # Fix for a failure


def diagnose() -> Iterator[CheckResult]:
    """Yield all results, each as soon as it is known."""
    for check in (_python, _packages, _jit, _cache, _cores, _memory, _tables, _launcher, _mpi):
        try:
            yield check()
        except Exception as error:  # noqa: BLE001 - a check that fails is a result
            yield CheckResult(False, check.__name__.strip("_"), defect_text(error), "see the error")


def compile_kernels() -> dict[str, Any]:
    """Compile or load the kernels that runs need; return the seconds that it took, and the cache folder."""
    from nadi.compiling.kernel_cache import cache_dir
    from nadi.et.kernels import compile_decoder
    from nadi.pdes.parallel import compile_all
    from nadi.simulation.closed_forms import compile_closed_form

    took_s = compile_all() + compile_closed_form() + compile_decoder()
    return {"compile_s": took_s, "cache": str(cache_dir())}


def _python() -> CheckResult:
    """Check the version of Python."""
    version = platform.python_version()
    fix = "install Python 3.11 or later and create a new environment"
    return CheckResult(sys.version_info >= MIN_PYTHON, "Python", f"{version} ({sys.executable})", fix)


def _packages() -> CheckResult:
    """Check that the packages that Nadi needs are installed."""
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    return CheckResult(not missing, "packages", ", ".join(found), f"pip install {' '.join(missing)}")


def _jit() -> CheckResult:
    """Check that the JIT is on and that its code is fast."""
    from nadi.compiling.decorators import jit_enabled
    from nadi.studies.benchmarks.instruments.calibration import pairs_per_second

    if not jit_enabled():
        return CheckResult(False, "JIT", "off", "unset NUMBA_DISABLE_JIT, runs are 100 to 250 times slower without")
    rate = pairs_per_second(rounds=200_000, runs=1)
    speed = f"compiles and runs, {rate / 1e6:.1f} M heap pairs/s"
    return CheckResult(rate > 1e6, "JIT", speed, "use a CPU of this decade")


def _cache() -> CheckResult:
    """Check that the cache of kernels is usable and intact."""
    from nadi.compiling.kernel_cache import cache_complaint, cache_dir, corrupt_files, is_warm, last_compilation_s
    from nadi.pdes.parallel import work

    folder, reason = cache_dir(), cache_complaint()
    if reason:
        fix = "set NADI_CACHE_DIR to a permanent folder that only you can write to (chmod go-w)"
        return CheckResult(False, "kernel cache", f"{reason}; {folder} is used for this process alone", fix)
    status, owner = folder.stat(), os.geteuid()
    corrupt = corrupt_files()
    seconds = last_compilation_s(work)
    hint = "" if seconds is None else f", which took {seconds:.0f} s before"
    state = "kernels are compiled" if is_warm(work) else f"empty: the first run compiles{hint}"
    if corrupt:
        state = f"{len(corrupt)} corrupt files, such as {corrupt[0]}"
    found = f"{folder} (of user {owner}, mode {stat.S_IMODE(status.st_mode):o}; {state})"
    return CheckResult(not corrupt, "kernel cache", found, "the next run deletes them and compiles again")


def _cores() -> CheckResult:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return CheckResult(True, "cores", f"{usable} usable of {os.cpu_count()}, {platform.machine()}")


def _memory() -> CheckResult:
    """Check the size of memory."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    found = f"{total / GIB:.1f} GiB, {free / GIB:.1f} GiB free"
    return CheckResult(total >= MIN_MEMORY_BYTES, "memory", found, "fabrics of 16,384 NPUs need 8 GiB")


def _tables() -> CheckResult:
    """Report the version of NVIDIA's measured tables."""
    from nadi.workload.compute import nvidia

    found = nvidia.installed() or f"not installed (optional: {nvidia.INSTALL})"
    return CheckResult(True, "NVIDIA's tables", found)


def _launcher() -> CheckResult:
    """Check that an MPI launcher is installed."""
    path = _mpiexec()
    fix = "pip install mpi4py mpich, or install an MPI; only runs on several ranks need it"
    return CheckResult(path is not None, "MPI launcher", str(path or "no mpiexec"), fix)


def _mpi() -> CheckResult:
    """Check that two ranks see each other: the launcher of another MPI starts independent worlds of one rank."""
    fix = "pip install mpi4py mpich; only runs on several ranks need it"
    if importlib.util.find_spec("mpi4py") is None:
        return CheckResult(False, "MPI", "no mpi4py", fix)
    launcher = _mpiexec()
    if launcher is None:
        return CheckResult(False, "MPI", "not tried: no launcher", fix)
    command = [str(launcher), "-n", str(_RANKS), *code_command(_MPI_PROBE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MPI_TIMEOUT_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return CheckResult(False, "MPI", f"no answer in {_MPI_TIMEOUT_S} s", fix)
    answers = _MPI_ANSWER.findall(done.stdout)
    if done.returncode or not answers:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return CheckResult(False, "MPI", f"{launcher} failed: {last}", fix)
    sizes = {int(size) for size, _ in answers}
    found = f"{' '.join(answers[0][1].split())}, {_RANKS} ranks see a world of {', '.join(map(str, sizes))}"
    other_mpi = "launcher and mpi4py belong to different MPIs: use the launcher of mpi4py's MPI"
    return CheckResult(sizes == {_RANKS}, "MPI", found, other_mpi)


def _mpiexec() -> Path | None:
    """Return the launcher in the folder of this Python, else the one in PATH."""
    installed = Path(sys.executable).parent / "mpiexec"
    found = shutil.which("mpiexec")
    return installed if installed.is_file() else Path(found) if found else None


def doctor(as_json: AsJson = False, compile_only: bool = typer.Option(False, "--compile", help=_COMPILE)) -> None:
    """Check Python, packages, the JIT and its cache, cores, memory and MPI, and print a fix for each problem."""
    from nadi import __version__

    if compile_only:
        kernels = compile_kernels()
        typer.echo(json.dumps(kernels) if as_json else f"kernels in {kernels['cache']}: {kernels['compile_s']:.1f} s")
        return
    results = []
    for result in diagnose():
        results.append(result._asdict())
        if not as_json:
            fix = f"; {result.fix}" if not result.ok else ""
            print_table(f"{'ok  ' if result.ok else 'warn'}  {result.what}: {result.found}{fix}")
    if as_json:
        print_json({"version": __version__, "checks": results})
