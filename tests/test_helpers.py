"""Durations of tests, commands that reproduce failures, and samples of products."""

import importlib
import itertools
import re
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from tests import budgets, durations, fuzz, samples


class Cache(dict):
    """Values by key, as pytest's cache has them."""

    def set(self, key, value):
        self[key] = value


def report(name, duration_s, when="call", passed=True, **marks):
    return SimpleNamespace(
        nodeid=name, user_properties=[("cpu_s", duration_s)], when=when, passed=passed, keywords=marks
    )


def run(cache, *reports):
    """A run of tests, and how it ends."""
    found, session = durations.Durations(cache), SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    for each in reports:
        found.pytest_runtest_logreport(each)
    found.pytest_sessionfinish(session)
    return found, session.exitstatus


def test_long_tests_without_a_mark_are_found():
    found, _ = run(
        Cache(), report("a", 2.5), report("b", 9, slow=1), report("e", 9, full=1), report("c", 3), report("d", 1.9)
    )
    assert found.over(2) == ["c", "a"]


def test_only_what_passed_counts():
    found, _ = run(Cache(), report("a", 5, passed=False), report("b", 5, when="setup"))
    assert found.found == {}


def test_durations_are_kept_and_compared():
    cache = Cache()
    run(cache, report("a", 0.5), report("b", 3), report("c", 0.1), report("d", 0.2))
    found, _ = run(cache, report("a", 1.6), report("b", 5), report("c", 0.9), report("new", 4))
    assert found.slower() == ["a"]
    assert cache["nadi/durations"] == {"a": 1.6, "b": 5, "c": 0.9, "d": 0.2, "new": 4}


@pytest.mark.parametrize(("value", "duration_s", "fails"), [("1", 3.1, True), ("1", 2.9, False), ("", 9, False)])
def test_a_run_fails_where_that_is_asked_for(monkeypatch, value, duration_s, fails):
    monkeypatch.setenv("NADI_CHECK_DURATIONS", value)
    assert run(Cache(), report("a", duration_s))[1] == int(fails)


def test_the_time_of_a_call_is_a_property_of_the_test():
    item, now_s = SimpleNamespace(user_properties=[]), iter([5.0, 7.5])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durations, "cpu_s", lambda: next(now_s))
        measured = durations.pytest_runtest_call(item)
        next(measured)
        with pytest.raises(StopIteration):
            measured.send(None)
    assert item.user_properties == [("cpu_s", 2.5)]


def test_work_of_threads_counts_and_waiting_does_not():
    begin_s = durations.cpu_s()
    time.sleep(0.3)
    waited_s = durations.cpu_s() - begin_s
    thread = threading.Thread(target=lambda: sum(range(30_000_000)))
    thread.start()
    thread.join()
    assert durations.cpu_s() - begin_s - waited_s > 0.05 > waited_s


FAILS = """
from hypothesis import given, strategies as st
from tests.budgets import bounded

@bounded(50)
@given(st.lists(st.integers(0, 10**9), min_size=3))
def test_sums_are_not_odd(numbers):
    assert sum(numbers) % 2 == 0, f"drawn: {len(numbers)}"
"""


def drawn(examples=20):
    """What one set of examples is."""
    found = []

    @budgets.bounded(examples)
    @given(st.integers(0, 2**60))
    def collect(number):
        found.append(number)

    collect()
    return found


def test_examples_are_the_same_in_every_run_unless_fresh_ones_are_asked_for(monkeypatch):
    monkeypatch.delenv(budgets.FRESH, raising=False)
    assert drawn() == drawn()
    monkeypatch.setenv(budgets.FRESH, "1")
    assert drawn() != drawn()


def test_examples_do_not_depend_on_what_is_imported(tmp_path, monkeypatch):
    monkeypatch.delenv(budgets.FRESH, raising=False)
    before = drawn(900)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_constants.py").write_text(f"NUMBERS = {list(range(10**15, 10**15 + 99))}\n")
    importlib.import_module("of_constants")
    assert drawn(900) == before


def test_a_failure_is_said_with_what_brings_it_again(tmp_path, capsys):
    path = tmp_path / "test_odd.py"
    path.write_text(FAILS)
    assert fuzz.main(["--seconds", "30", str(path)]) == 1
    said = capsys.readouterr().out
    (seed,) = re.findall(r"again: python -m tests\.fuzz --seed (\d+) ", said)
    (example,) = set(re.findall(r"numbers=(\[.*?\])", said))
    assert fuzz.main(["--seed", seed, str(path)]) == 1
    assert f"numbers={example}" in capsys.readouterr().out


def test_files_with_random_examples_are_found():
    found = {path.relative_to(fuzz.ROOT).as_posix() for path in fuzz.with_examples(fuzz.ROOT / "tests")}
    assert {"tests/pdes/test_against_naive.py", "tests/fabric/test_against_naive.py"} <= found
    assert "tests/digests/test_recorded.py" not in found


PRODUCTS = {
    "three factors": list(itertools.product("abcd", range(3), (True, False))),
    "values that exclude each other": [(a, b, c) for a in range(5) for b in range(a, 5) for c in (0, b)],
}


def pairs(cases):
    """Every two values of one case, with their positions."""
    return {pair for case in cases for pair in itertools.combinations(enumerate(case), 2)}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_sample_is_smaller_and_has_every_pair(name, monkeypatch):
    monkeypatch.delenv(samples.FULL, raising=False)
    whole = PRODUCTS[name]
    found = samples.pairwise(whole)
    assert pairs(found) == pairs(whole)
    assert len(found) < len(whole)
    assert found == sorted(found, key=whole.index)


def test_each_value_occurs(monkeypatch):
    monkeypatch.delenv(samples.FULL, raising=False)
    assert samples.each_value(itertools.product("abc", (1, 2))) == [("a", 1), ("b", 2), ("c", 1)]


def test_fuzzing_runs_every_case(monkeypatch):
    monkeypatch.setenv(samples.FULL, "1")
    assert samples.pairwise(PRODUCTS["three factors"]) == PRODUCTS["three factors"]


def test_a_mark_has_every_pair_of_listed_values(monkeypatch):
    """Also of values that have no hash; of a kind and its algorithm only what is listed."""
    monkeypatch.delenv(samples.FULL, raising=False)
    listed = [("a", [1]), ("a", [2]), ("b", [3])]
    mark = samples.sampled({"kind, algorithm": listed, "members": [2, 3], "size": (0, 9)}).mark
    names, cases = mark.args
    assert names == "kind, algorithm, members, size"
    assert {(kind, algorithm[0]) for kind, algorithm, _, _ in cases} == {("a", 1), ("a", 2), ("b", 3)}
    assert {(case[1][0], *case[2:3]) for case in cases} == {(n, m) for n in (1, 2, 3) for m in (2, 3)}
    assert {case[2:] for case in cases} == {(m, s) for m in (2, 3) for s in (0, 9)}
    assert len(cases) < len(listed) * 4
    monkeypatch.setenv(samples.FULL, "1")
    assert len(samples.sampled({"kind, algorithm": listed, "members": [2, 3], "size": (0, 9)}).mark.args[1]) == 12
