"""Durations of tests are compared with earlier ones, and long tests need a mark."""

import threading
import time
from types import SimpleNamespace

import pytest

from tests import durations
from tests.durations import Durations


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
    found, session = Durations(cache), SimpleNamespace(exitstatus=pytest.ExitCode.OK)
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
