"""Counts of messages and packets, beside the steps read one by one."""

import numpy as np
import pytest

from nadi import topologies
from nadi.workload import collective_program, collectives, uneven_program
from nadi.workload.collectives.plans.plan import NONE
from nadi.workload.collectives.schedules.sends import buffers, message_count, most_bytes, packet_count, pairs, unpack
from nadi.workload.kinds import KINDS
from tests.samples import sampled

HOSTS = "rail-optimised:npus=8,gpus_per_host=4"
ALGORITHMS = [
    *((kind, name) for kind in KINDS for name in collectives.algorithms_of(kind)),
    ("all-reduce", "grid:splits=3,order=themis"),
    ("all-reduce", "ring:channels=3,bidirectional=true"),
    ("all-reduce", "nccl:algo=ring,proto=ll128"),
]


def is_counted(schedules, size_bytes):
    """Messages, pairs and packets are counted as if all steps were read one by one."""
    lanes, of_lanes = unpack(schedules, 0), buffers(schedules, 0)
    sends = [
        (me, step.send_peer, of_lanes[me][number].wire_bytes(step.send_chunk, step.send_count, size_bytes))
        for me, own in enumerate(lanes)
        for number, lane in enumerate(own)
        for step in lane
        if step.send_peer != NONE
    ]
    ends = {(src, dst) for src, dst, _ in sends}
    assert pairs(schedules, 0, 1000) == ends
    assert pairs(schedules, 0, len(ends) - 1) is None
    assert message_count(schedules, 0) == len(sends)
    packets = sum(max(1, -(-payload // 64)) for _, _, payload in sends)
    assert packets - len(sends) <= packet_count(schedules, 0, size_bytes, 64) <= packets
    if schedules.uneven[0]:
        sent = np.bincount([src for src, _, _ in sends], [payload for _, _, payload in sends])
        assert most_bytes(schedules, 0, size_bytes) >= sent.max()


@sampled({"size_bytes": [1, 100_003], "kind, algorithm": ALGORITHMS})
def test_every_algorithm(kind, algorithm, size_bytes):
    graph = topologies.build("switch:npus=8" if algorithm == "nvls" else HOSTS)
    is_counted(collective_program(kind, graph.npus, size_bytes, algorithm, graph).schedules, size_bytes)


@pytest.mark.parametrize("unit_bytes", [1, 4096])
def test_uneven_all_to_alls(unit_bytes):
    matrix = np.random.default_rng(5).integers(0, 100, (4, 4)) * unit_bytes
    program = uneven_program(matrix, "direct", topologies.build("switch:npus=4"))
    is_counted(program.schedules, int(program.node_bytes[0]))
