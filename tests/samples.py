"""Pairwise samples of products of parameters: a few cases in `make test`, all of them in `make test-more`."""

import itertools
import os
from collections import Counter

import pytest

FULL = "NADI_FULL_PRODUCTS"
"""Environment variable under which tests run every case of a product instead of its pairwise sample."""


def pairwise(cases):
    """Return a subset of cases that has every pair of values that occurs in any case, in the order of the cases.

    Args:
        cases: Tuples of hashable values, all of one length, for example from `itertools.product`.
    """
    return _covering(cases, 2)


def each_value(cases):
    """Return a subset of cases that has every value that occurs in any case, in the order of the cases.

    Args:
        cases: Tuples as for `pairwise`.
    """
    return _covering(cases, 1)


def some(few, many):
    """Return `few`, or `many` where tests run every case: numbers of random examples of what takes long."""
    return many if os.environ.get(FULL) else few


def sampled(factors):
    """Return a mark that gives a test the pairwise sample of a product.

    Args:
        factors: Name of an argument -> its values. Of several arguments ("kind, algorithm") the values are tuples;
            pairs of one argument's values with those of each other are covered, in tuples that are listed.
    """
    listed = [[value if "," in names else (value,) for value in values] for names, values in factors.items()]
    cases = [tuple(itertools.chain.from_iterable(parts)) for parts in itertools.product(*listed)]
    columns = [[] for _ in cases[0]]

    def number(column, value):
        if value not in column:
            column.append(value)
        return column.index(value)

    numbered = {tuple(map(number, columns, case)): case for case in cases}
    return pytest.mark.parametrize(", ".join(factors), [numbered[each] for each in pairwise(numbered)])


def _covering(cases, together):
    cases = list(cases)
    if os.environ.get(FULL):
        return cases
    parts = [set(itertools.combinations(enumerate(case), together)) for case in cases]
    missing, chosen, used = set().union(*parts), [], Counter()

    def gain(number):
        """Return how much a case covers; among equals the one whose values were chosen least often."""
        return len(parts[number] & missing), -sum(used[value] for value in enumerate(cases[number]))

    while missing:
        best = max(range(len(cases)), key=gain)
        chosen.append(best)
        missing -= parts[best]
        used.update(enumerate(cases[best]))
    return [cases[number] for number in sorted(chosen)]
