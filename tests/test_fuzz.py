"""Fresh examples: other ones than those of the suite, and the command that brings them again."""

import importlib
import re

from hypothesis import given
from hypothesis import strategies as st

from tests import budgets, fuzz

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
