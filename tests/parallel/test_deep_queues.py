"""Packets that wait long at a port whose other end another logical process simulates."""

import json

RUN = """
[workload]
model = "gpt3-125m"
plan = "tp4,sp,dp4,gb16,mb1,zero1,seq64"
[topology]
spec = "rail-fat-tree:npus=16,gpus_per_host=4,rails=1,hosts_per_unit=1,spines=2,accelerator=h100"
[compute]
gpu = "h100"
"""


def test_packets_cross_in_order_where_some_wait_for_later_windows(nadi, tmp_path):
    """Queues are deeper than the windows that an outbox spans, and windows are much longer than cells.

    A packet that found room in the outbox used to overtake those that waited on its link; at the other end they then
    waited out of order, and came too late.
    """
    file = tmp_path / "run.toml"
    file.write_text(RUN)
    found = [nadi(None, "run", file, "--json", "-q", *more) for more in ((), ("--workers", 2))]
    assert [outcome.returncode for outcome in found] == [0, 0], found[1].stderr
    serial, parallel = (json.loads(outcome.stdout)["digest"] for outcome in found)
    assert serial == parallel
