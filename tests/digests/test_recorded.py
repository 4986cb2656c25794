"""What tiny runs brought when they were recorded, they bring again: no change of the engine changes an answer.

Who means to change one records it again: python -m tests.digests.record NAME
"""

import pytest

from tests.digests.record import recorded
from tests.digests.runs import OF_SHARED_DATA, runs

RECORDED = recorded()


@pytest.mark.parametrize("name", runs())
def test_a_run_brings_what_was_recorded(request, name):
    if name in OF_SHARED_DATA:
        request.getfixturevalue("shared_data")
    assert runs()[name]().row() == RECORDED[name]


def test_nothing_else_is_recorded():
    assert RECORDED.keys() == runs().keys()


@pytest.mark.parametrize(
    ("divided", "alone"),
    [
        ("lossy in two LPs", "matrix, lossy"),
        ("cut through in five LPs, two threads", "matrix, cut_through"),
        ("ties in LPs of one node", "matrix, ties"),
        ("RoCE in three LPs", "matrix, roce"),
        ("credits in three LPs", "matrix, credits_of_lanes"),
        ("asked in two processes", "matrix, asked"),
        ("sprayed in two processes", "matrix, sprayed"),
        ("detours in three LPs", "matrix, detoured"),
    ],
)
def test_a_divided_run_was_recorded_as_the_undivided_one(divided, alone):
    assert RECORDED[divided] == RECORDED[alone]
