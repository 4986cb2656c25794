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
