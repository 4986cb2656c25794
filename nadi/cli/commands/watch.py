"""`nadi watch`: show how far a run is, until it ends."""

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nadi.cli.options import AsJson
from nadi.cli.output import print_json, print_table
from nadi.errors import ConfigError
from nadi.terminal import say

if TYPE_CHECKING:
    from nadi.launching.progress import Status
    from nadi.reports.staging import Sight

_FAILED = 1
_FOLDER = "Folder that `nadi run --out DIR` writes to."
_ONCE = "Show the status once, without waiting for the end."
_LINE_EVERY_S = 5.0  # seconds between two lines if standard output is no terminal


def watch(
    folder: Path = typer.Argument(metavar="DIR", help=_FOLDER),
    once: bool = typer.Option(False, "--once", help=_ONCE),
    as_json: AsJson = False,
) -> None:
    """Show how far a run is: simulated time, rate, share done, slowest rank, time left. Ends when the run ends.

    Of a run with checkpoints it also shows the results until the last one.

    The exit code is 0 if the results are complete, or if the run continues (--once), and 1 if it has ended without.
    """
    from rich.live import Live

    from nadi.launching.checkpoints import PARTIAL
    from nadi.launching.progress import RENEW_EVERY_S
    from nadi.reports.staging import Watch, partial_metrics
    from nadi.terminal import Terminal, facts

    watched, said_s = Watch(folder), 0.0
    is_live = sys.stdout.isatty() and not once and not as_json
    with Live(console=Terminal(), transient=True, auto_refresh=False) if is_live else nullcontext() as live:
        while True:
            sight = watched.look()
            if sight.state == "none":
                raise ConfigError(f"{folder}: found no run that writes to it, and no results; expected --out of a run")
            is_last = once or sight.state not in ("starting", "running")
            partial = partial_metrics(folder)
            rows = [("run", _state_text(folder, sight)), *(_rows(sight.status) if sight.status else ())]
            rows += _partial_rows(folder / PARTIAL, partial) if partial else []
            if as_json:
                print_json(_document(sight, partial), indent=None)
            elif live is not None:
                live.update(facts("", rows), refresh=True)
            elif not is_last and time.monotonic() >= said_s + _LINE_EVERY_S:
                said_s = time.monotonic()
                say(_line(rows))
            if is_last:
                break
            time.sleep(RENEW_EVERY_S)
    if not as_json:  # after the end of the live display, which erases what it has shown
        print_table(facts("", rows)) if sight.state == "running" else say(_line(rows))
    if sight.state in ("ended", "dead"):
        raise typer.Exit(_FAILED)


def _line(rows: list[tuple[str, str]]) -> str:
    """Return labels and values as one line."""
    return "; ".join(text if name == "run" else f"{name} {text}" for name, text in rows)


def _document(sight: "Sight", partial: dict[str, Any] | None) -> dict[str, Any]:
    """Return the JSON document of --json; partial: figures of the results until the last checkpoint."""
    status = sight.status.model_dump() if sight.status else {}
    so_far = {"partial": partial} if partial else {}
    return {"state": sight.state, "renewed_s_ago": round(sight.age_s, 1), **status, **so_far}


def _partial_rows(tables: Path, partial: dict[str, Any]) -> list[tuple[str, str]]:
    """Return labels and values of the results until the last checkpoint, whose tables are in the folder `tables`."""
    from nadi.terminal import time_text

    rows = [("so far", f"the first {time_text(partial['simulated_ps'])}; tables in {tables}")]
    if "steps_done" in partial:
        rows.append(("steps", f"{partial['steps_done']} of {partial['steps']} done"))
    rows.append(("compute", f"{partial['compute_share']:.1%}, exposed communication {partial['exposed_share']:.1%}"))
    collectives = partial["collectives"]
    rows += [(kind["kind"], f"{kind['done']:,} done, mean {time_text(kind['mean_ps'])}") for kind in collectives]
    return rows


def _state_text(folder: Path, sight: "Sight") -> str:
    """Return a sentence about the state of the run."""
    status, ago = sight.status, f"last renewed {sight.age_s:.0f} s ago"
    process = f"process {status.process} on {status.host}" if status else "a process that wrote no status"
    saved = [*folder.glob("checkpoints/[0-9]*")]
    fix = f"`nadi run --resume {folder}` continues from its last checkpoint" if saved else "its output has the reason"
    ranks = f", first of {status.ranks} ranks" if status and status.ranks > 1 else ""
    return {
        "starting": "starting",
        "running": f"{status.phase if status else ''} ({process}{ranks}; {ago})",
        "finished": f"finished: results in {folder}",
        "ended": f"ended without results ({process}{ranks}): {fix}",
        "dead": f"dead: {process}{ranks} has ended or hangs, {ago}: {fix}",
    }[sight.state]


def _rows(status: "Status") -> list[tuple[str, str]]:
    """Return labels and values of what a run has reported."""
    from nadi.launching.progress import duration_text
    from nadi.terminal import time_text

    rows = []
    if status.simulated_ps is not None:
        rows.append(("simulated", time_text(status.simulated_ps)))
    if status.packet_hops:
        now, mean = status.packet_hops_per_s or 0.0, status.mean_packet_hops_per_s or 0.0
        rows.append(("rate", f"{now / 1e6:.1f} M packet-hops/s, mean {mean / 1e6:.1f} M"))
    if status.done_share is not None:
        rows.append(("done", f"{status.done_share:.1%}"))
    if status.left_s is not None:
        rows.append(("left", duration_text(status.left_s)))
    if status.slowest is not None:
        worker = f"rank {status.slowest.rank}, worker {status.slowest.worker}"
        waits = f"waits {status.slowest.waiting_share:.1%} of the time, mean {status.slowest.mean_waiting_share:.1%}"
        rows.append(("slowest", f"{worker}: {waits}"))
    return rows
