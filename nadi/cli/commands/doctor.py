"""`nadi doctor`: check the requirements of a run, and name the fix for each that is not met."""

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

from nadi.cli.options import AsJson
from nadi.cli.output import print_json, print_table
from nadi.compiling import defect_text
from nadi.inputs.units import GIB
from nadi.launching.installation import code_command

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
