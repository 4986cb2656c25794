"""Collectives of NVLink domains are replayed on two ranks too, with the results of one process."""

import json

import pytest

from tests import needs

STEP = ["run", "--model", "gpt3-350m", "--plan", "tp8,dp2,gb2,seq256", "--cluster", "dgx-b200-superpod", "--gpus", 16]


HPCC = ("--set", "network.switch=shared-buffer", "--set", "network.congestion_control=hpcc")


@needs.ranks
@pytest.mark.parametrize("network", [(), HPCC])
def test_two_ranks_replay_what_one_process_replays(nadi, tmp_path, network):
    summaries = []
    for ranks in (None, 2):
        done = nadi(ranks, *STEP, *network, "--out", tmp_path / str(ranks), "-q")
        assert done.returncode == 0, done.stderr
        summaries.append(json.loads((tmp_path / str(ranks) / "summary.json").read_text()))
    alone, two = summaries
    assert two["ranks"] == 2
    assert two["digest"] == alone["digest"]
    assert two["packet_hops"] == alone["packet_hops"]
    assert two["reuse"]["replayed_messages"] == alone["reuse"]["replayed_messages"] > 0  # periods of one process, too
