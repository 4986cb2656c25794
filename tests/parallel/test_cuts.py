"""Runs that are stopped at cuts and continue, on other workers too, have the results of the run never stopped."""

import itertools
import json

import pytest

from pdes import Layout, Processes, StoppedError, build_world, run, run_divided
from pdes.checkpoint.saver import ROW_LISTS
from tests.features.restarting import Stopping, often
from tests.parallel.fingerprint import differing, fingerprint
from tests.parallel.matrix import CASES, case, owner_of, wanted
from tests.samples import pairwise

WAYS = ("1 thread", "2 threads", "2 processes", "3 processes")
RESTARTS = [
    (name, method, lps, first, second)
    for name, method, lps, first, second in itertools.product(
        [name for name in CASES if name != "symbolic"], ("blocks", "scatter"), (1, 3), WAYS, WAYS
    )
    if lps > 1 or first == second == "1 thread"
]
"""Case, method that divides the fabric, number of LPs, workers before and after the stop."""


def run_on(name, owner, way, checkpoints):
    """Run a case on the workers that `way` says."""
    number, kind = way.split()
    graph, program, settings = case(name)[:3]
    if kind == "processes":
        mailbox = Processes(int(number))
        return run_divided(Layout(graph, settings, owner), program, settings, mailbox, checkpoints=checkpoints)
    return run(build_world(graph, program, settings, owner), threads=int(number), checkpoints=checkpoints)


def checkpoints_of(folder, number, calls):
    """Return the checkpoints of the run after `number` stops, which stops again after so many calls."""
    resumed_from = folder / "checkpoints" / f"{number:06}" if number else None
    checkpoints = Stopping(folder, 0, resumed_from, {}, lambda _: None)
    checkpoints.calls_left = calls
    return checkpoints


@pytest.mark.parametrize(("name", "method", "lps", "first", "second"), pairwise(RESTARTS))
def test_a_run_that_stops_twice(name, method, lps, first, second, tmp_path):
    owner = owner_of(name, method, lps)
    results, stops = None, 0
    while results is None:
        way, calls = ((first, 1), (second, 1), (first, 10**9))[stops]
        with often():
            try:
                results = run_on(name, owner, way, checkpoints_of(tmp_path, stops, calls))
            except StoppedError:
                stops += 1
    assert stops > 0
    assert differing(fingerprint(results), wanted(name)) == []


def test_ranks(python, tmp_path):
    names = ["lossy", "sprayed", "roce", "nccl", "ends", "in_network"]
    done = python(2, "tests/parallel/cuts_on_ranks.py", tmp_path, *names)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == {name: {"differs": [], "stops": found[name]["stops"]} for name in names}
    assert min(each["stops"] for each in found.values()) > 0


def test_everything_that_an_lp_holds_is_saved_or_built():
    """A new attribute of LogicalProcess must be saved (pdes/checkpoint/saver.py), or is listed here."""
    (lp,) = build_world(*case("lossy")[:3]).lps
    built = {"part", "row_ptr", "domains", "back", "address", "_directory"}
    assert vars(lp).keys() - built == {"_world", "replay", *ROW_LISTS}
