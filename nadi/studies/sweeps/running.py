"""Runs of a sweep: processes of this machine, each point in a folder of its own; what is finished is skipped."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock
from typing import NamedTuple

import inputs
from nadi.launching.python import nadi_command
from nadi.studies.sweeps.points import Point, SweepDefinition

RUNS = "runs"


class PointOutcome(NamedTuple):
    """How a point ended.

    Attributes:
        point: its place in the sweep.
        error: one line; "" = it is finished.
        was_there: an earlier sweep has finished it.
    """

    point: int
    error: str
    was_there: bool = False


def folder_of(out: Path, point: Point) -> Path:
    """Where the results of a point are, below the sweep's folder."""
    return out / RUNS / point.name


def is_finished(out: Path, point: Point) -> bool:
    """Whether its results are complete: summary.json comes last."""
    return (folder_of(out, point) / "summary.json").is_file()


def earlier_outcomes(sweep: SweepDefinition, out: Path) -> list[PointOutcome]:
    """Return how all points ended in earlier sweeps into the folder, without running any.

    Args:
        sweep: The sweep.
        out: The sweep's folder.
    """
    return [
        PointOutcome(at, "", was_there=True)
        if is_finished(out, point)
        else PointOutcome(at, _failure(out, point) or "not run")
        for at, point in enumerate(sweep.points)
    ]


def run_points(
    sweep: SweepDefinition,
    out: Path,
    own: Sequence[int],
    jobs: int,
    tell: Callable[[PointOutcome], None],
    *,
    force: bool = False,
) -> list[PointOutcome]:
    """Run those of the points that are not finished.

    Args:
        sweep: whose points.
        out: the sweep's folder.
        own: places of the points to run.
        jobs: how many at a time.
        tell: is called as each ends, those first that were finished already.
        force: as --force of `nadi run`.
    """
    done = [PointOutcome(at, "", was_there=True) for at in own if is_finished(out, sweep.points[at])]
    for outcome in done:
        tell(outcome)
    there = {outcome.point for outcome in done}
    with _processes() as run, ThreadPoolExecutor(jobs) as pool:
        waiting: set[Future[PointOutcome]] = {
            pool.submit(_one, run, sweep, out, at, force=force) for at in own if at not in there
        }
        try:
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ended:
                    done.append(future.result())
                    tell(done[-1])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sorted(done)


def _failure_file(out: Path, point: Point) -> Path:
    """Return the file that holds the reason why a point failed, for the table that is made of all shards."""
    return out / RUNS / f"{point.name}.failed"


def _failure(out: Path, point: Point) -> str:
    """Return why a point failed when it was last run; "" where nothing is known."""
    try:
        return inputs.read_text(_failure_file(out, point)).strip()
    except (OSError, ValueError):
        return ""


def _one(
    run: Callable[[Sequence[str]], tuple[int, str]], sweep: SweepDefinition, out: Path, at: int, *, force: bool
) -> PointOutcome:
    point = sweep.points[at]
    command = nadi_command(["run", *([str(sweep.run_file)] if sweep.run_file else [])])
    for override in point.overrides():
        command += ["--set", override]
    command += ["--out", str(folder_of(out, point)), "--quiet", *(["--force"] if force else [])]
    code, said = run(command)
    failure = _failure_file(out, point)
    with suppress(OSError):  # the table says it, too, unless another shard makes that
        failure.unlink(missing_ok=True)
    if code == 0:
        return PointOutcome(at, "")
    lines = [line for line in said.splitlines() if line.strip()]
    error = lines[-1].removeprefix("nadi: error: ") if lines else f"exit code {code}"
    with suppress(OSError):
        failure.parent.mkdir(parents=True, exist_ok=True)
        inputs.write_whole(failure, error)
    return PointOutcome(at, error)


@contextmanager
def _processes() -> Iterator[Callable[[Sequence[str]], tuple[int, str]]]:
    """What runs a command to its end; when the block ends early, commands under way are ended."""
    under_way: set[subprocess.Popen[str]] = set()
    lock, is_over = Lock(), Event()

    def run(command: Sequence[str]) -> tuple[int, str]:
        with lock:
            if is_over.is_set():
                return 130, "not begun"
            process = subprocess.Popen(  # noqa: S603 - this project's own command
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            under_way.add(process)
        try:
            _, said = process.communicate()
        finally:
            with lock:
                under_way.discard(process)
        return process.returncode, said

    try:
        yield run
    except BaseException:
        with lock:
            is_over.set()
            for process in under_way:
                process.terminate()
        raise
