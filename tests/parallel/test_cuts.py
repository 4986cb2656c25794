"""Runs stopped at snapshot points that continue, on other workers too, have the results of the run never stopped."""

import itertools
import os
import re
from pathlib import Path

import pytest

from nadi.pdes import build_world, run
from nadi.pdes.checkpoint import moving, saver
from nadi.pdes.construction import packets
from nadi.pdes.core.declared import rows_by, saved_arrays
from nadi.pdes.core.rows import ALONE, EMPTY, OWN_WAY, Row, RowsOf, WordKind, network
from nadi.pdes.parallel import Layout, Processes, StoppedError, run_divided
from tests.features.restarting import Stopping, often
from tests.nonempty import nonempty
from tests.parallel.fingerprint import differing, fingerprint
from tests.parallel.matrix import CASES, case, owner_of, wanted
from tests.samples import FULL

WAYS = (
    "blocks/1/1 thread",
    "blocks/3/2 threads",
    "scatter/3/3 processes",
    "metis/2/2 processes",
    "scatter/5/2 threads",
)
"""Method that divides the fabric, number of LPs, workers."""
NAMES = [name for name in CASES if name != "symbolic"]
RESTARTS = (
    list(itertools.product(NAMES, WAYS, WAYS))
    if os.environ.get(FULL)
    else [(name, WAYS[at % 5], WAYS[(2 * at + 1) % 5]) for at, name in enumerate(NAMES)]
)
"""Case, how it runs before the first stop and after the second, and between the two."""


def run_on(name, way, checkpoints):
    """Run a case in a way of WAYS; a fabric that the method cannot divide is not divided."""
    method, lps, workers = way.split("/")
    number, kind = workers.split()
    graph, program, settings = case(name)[:3]
    owner = owner_of(name, method, int(lps))
    if owner is not None and kind == "processes":
        mailbox = Processes(int(number))
        return run_divided(Layout(graph, settings, owner), program, settings, mailbox, checkpoints=checkpoints)
    return run(build_world(graph, program, settings, owner), threads=int(number), checkpoints=checkpoints)


def checkpoints_of(folder, number, calls):
    """Return the checkpoints of the run after `number` stops, which stops again after so many calls."""
    resumed_from = folder / "checkpoints" / f"{number:06}" if number else None
    checkpoints = Stopping(folder, 0, resumed_from, {}, lambda _: None)
    checkpoints.calls_left = calls
    return checkpoints


@pytest.mark.parametrize(("name", "first", "second"), RESTARTS)
def test_a_run_that_stops_twice(name, first, second, tmp_path):
    results, stops = None, 0
    while results is None:
        way, calls = ((first, 0), (second, 1), (first, 10**9))[stops]
        with often():
            try:
                results = run_on(name, way, checkpoints_of(tmp_path, stops, calls))
            except StoppedError:
                stops += 1
    assert stops > 0
    assert differing(fingerprint(results), wanted(name)) == []


def test_the_rate_of_a_resumed_run_is_that_of_its_last_part(tmp_path):
    """On three LPs of three processes, then of two threads."""
    with often(), pytest.raises(StoppedError):
        run_on("lossy", WAYS[2], checkpoints_of(tmp_path, 0, 3))
    results = run_on("lossy", WAYS[1], checkpoints_of(tmp_path, 1, 10**9))
    assert 0 < results.resumed_hops < results.counters["packet_hops"]
    assert results.simulated_hops == results.counters["packet_hops"] - results.resumed_hops


def test_everything_that_an_lp_holds_is_saved_or_built():
    """A new attribute of LogicalProcess must be saved (pdes/checkpoint/saver.py), or is listed here."""
    (lp,) = build_world(*case("lossy")[:3]).lps
    built = {"part", "row_ptr", "domains", "back", "address", "_directory"}
    assert vars(lp).keys() - built == {"_world", "replay", *saver.ROW_LISTS}


def test_every_saved_array_says_how_it_is_moved():
    """To rows of a table, or in its own way, unless it is of models with one LP, empty or made again."""
    for each in nonempty(saved_arrays()):
        assert each.table or each.marks & {ALONE, EMPTY}, each.name
    in_its_own_way = {each.name.split(".")[-1] for each in saved_arrays() if OWN_WAY in each.marks and each.each == 1}
    named = set(re.findall(r"\w+", "".join(Path(each.__file__).read_text() for each in (moving, saver, packets))))
    assert in_its_own_way - named == {"wait_tail"}, "packets are put on links one by one, the last sets the tail"


def test_every_word_whose_kind_does_not_say_how_it_is_moved_is_moved_by_name():
    sources = "".join(Path(module.__file__).read_text() for module in (moving, saver))
    named = set(re.findall(r"\w+", sources)) | {
        f"{at}_{end}" for at in ("control", "transit") for end in ("head", "tail")
    }
    kinds = {each.kind for table in RowsOf for each in rows_by(table) if issubclass(each.kind, Row)}
    views = {network.Message, network.PendingRequest, network.LaterMessage, network.KeptMessage, network.QueuedRequest}
    for kind in nonempty(kinds | views):
        by_name = {WordKind.PLACE, WordKind.RECORD, WordKind.PACKED_LOCAL}
        local = {name for name, word in kind.declared.items() if word.kind in by_name and not word.is_built}
        assert local <= named, kind
