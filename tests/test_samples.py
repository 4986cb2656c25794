"""Pairwise samples have every pair of values that occurs in a product."""

import itertools

import pytest

from tests import samples

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
