"""Kernels of packets that look at each index bring what was recorded, and find none that is out of bounds."""

import pytest

from tests.digests.bounds_check import bring_what_was_recorded


@pytest.mark.full
def test_no_index_of_the_recorded_runs_of_packets_is_out_of_bounds():
    assert len(bring_what_was_recorded(of_whole_messages=False)) > 100
