"""Kernels of whole messages and closed forms that look at each index find none that is out of bounds; one is told."""

import pytest

from tests.digests.bounds_check import bring_what_was_recorded, checked


def test_an_index_that_is_out_of_bounds_is_told():
    """Of a hook, which cannot raise, on standard error."""
    done = checked("tests/digests/far_index.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "refused 3\nrefused -1\n"
    assert done.stderr.count("IndexError") == 2


@pytest.mark.full
def test_no_index_of_the_recorded_runs_of_whole_messages_is_out_of_bounds():
    assert len(bring_what_was_recorded(of_whole_messages=True)) > 20
