"""Durations of tests, in seconds of CPU time: kept from run to run, compared, and limited to LIMIT_S without a mark.

CPU time is that of the process, all its threads and the child processes that have ended: other tests and programs
beside it hardly change it, unlike the time on the clock. Pytest's cache keeps the durations
(.pytest_cache/v/nadi/durations).
"""

import os

import pytest

LIMIT_S = 2.0
"""Duration from which on a test needs the mark `slow`."""
NOISE = 1.5
"""Factor by which a test may exceed LIMIT_S before NADI_CHECK_DURATIONS=1 fails: shared caches, other processors."""
SLOWER, SLOWER_S = 2.0, 1.0
"""Factor and seconds by which a test must both have become slower to be listed."""
_KEY = "nadi/durations"
_PROPERTY = "cpu_s"


def cpu_s():
    """Return the CPU seconds of this process, its threads and its ended child processes so far."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Measure each test without its fixtures; reports bring the duration from pytest-xdist's workers."""
    begin_s = cpu_s()
    try:
        return (yield)
    finally:
        item.user_properties.append((_PROPERTY, round(cpu_s() - begin_s, 2)))


def pytest_configure(config):
    """Collect durations in the process that prints the summary."""
    if not hasattr(config, "workerinput") and hasattr(config, "cache"):
        config.pluginmanager.register(Durations(config.cache), "durations")


class Durations:
    """Durations of the tests of a run beside those of earlier runs.

    Attributes:
        before: CPU seconds of tests in earlier runs, by name.
        found: CPU seconds of the tests of this run that passed, by name.
        unmarked: Names of those of these tests that lack the marks `slow` and `full`.
    """

    def __init__(self, cache):
        self._cache = cache
        self.before = cache.get(_KEY, {})
        self.found, self.unmarked = {}, set()

    def pytest_runtest_logreport(self, report):
        """Take the duration of a test that passed: one that failed may have ended early."""
        duration_s = dict(report.user_properties).get(_PROPERTY)
        if report.when == "call" and report.passed and duration_s is not None:
            self.found[report.nodeid] = duration_s
            if not {"slow", "full"} & report.keywords.keys():
                self.unmarked.add(report.nodeid)

    def over(self, limit_s):
        """Return the tests without a mark that took longer than a limit in seconds, the longest first."""
        names = [name for name in self.unmarked if self.found[name] > limit_s]
        return sorted(names, key=self.found.get, reverse=True)

    def slower(self):
        """Return the tests that took much longer than before, those with the largest difference first."""
        more_s = {name: self.found[name] - self.before[name] for name in self.found.keys() & self.before.keys()}
        names = [name for name in more_s if more_s[name] > SLOWER_S and self.found[name] > SLOWER * self.before[name]]
        return sorted(names, key=more_s.get, reverse=True)

    def pytest_sessionfinish(self, session):
        """Keep the durations; fail if tests lack a mark, where that is asked for."""
        if self.found:
            self._cache.set(_KEY, self.before | self.found)
        fails = os.environ.get("NADI_CHECK_DURATIONS") == "1" and self.over(LIMIT_S * NOISE)
        if fails and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        """List the tests that lack a mark, and those that became slower."""
        lists = {
            f"{LIMIT_S:g} s of CPU time and no mark `slow`": self.over(LIMIT_S),
            "slower than before, in CPU time": self.slower(),
        }
        for title, names in lists.items():
            if names:
                terminalreporter.section(title)
            for name in names:
                before = f", {self.before[name]:.2f} s before" if name in self.before else ""
                terminalreporter.line(f"{self.found[name]:.2f} s{before}: {name}")
