"""All steps as arrays, beside the lanes read one by one."""

import numpy as np
import pytest

import topologies
from tests.nonempty import nonempty
from workload import collective_program, collectives, uneven_program
from workload.collectives.plans.plan import NONE
from workload.collectives.schedules.read_back import all_steps, buffers, member_steps, unpack
from workload.collectives.schedules.sends import message_count, most_bytes, packet_count, pairs
from workload.kinds import KINDS

HOSTS = "rail-optimised:npus=8,gpus_per_host=4"
ALGORITHMS = [
    *((kind, name) for kind in KINDS for name in collectives.algorithms_of(kind)),
    ("all-reduce", "grid:splits=3,order=themis"),
    ("all-reduce", "ring:channels=3,bidirectional=true"),
    ("all-reduce", "nccl:algo=ring,proto=ll128"),
]


def is_counted(schedules, size_bytes):
    """Without going through all steps; messages as long as their share of the buffer says."""
    steps = all_steps(schedules, 0, size_bytes)
    sends = steps.dst >= 0
    ends = set(zip(steps.src[sends].tolist(), steps.dst[sends].tolist(), strict=True))
    assert pairs(schedules, 0, 1000) == ends
    assert pairs(schedules, 0, len(ends) - 1) is None
    assert message_count(schedules, 0) == sends.sum()
    packets = np.maximum(1, -(-steps.bytes[sends] // 64)).sum()
    assert packets - sends.sum() <= packet_count(schedules, 0, size_bytes, 64) <= packets
    sent = np.bincount(steps.src[sends], steps.bytes[sends])
    if schedules.uneven[0]:
        assert most_bytes(schedules, 0, size_bytes) >= sent.max()


def is_as_read(schedules, size_bytes):
    is_counted(schedules, size_bytes)
    steps, row = all_steps(schedules, 0, size_bytes), 0
    lanes, of_lanes = unpack(schedules, 0), buffers(schedules, 0)
    rows = [member_steps(schedules, 0, me).rows for me in range(len(lanes))]
    assert steps.row.tolist() == [number for own in rows for number in own]
    assert np.diff(steps.member_ptr).tolist() == [len(own) for own in lanes]
    for me, own in nonempty(enumerate(lanes)):
        first = int(steps.member_ptr[me])
        for number, lane in enumerate(own):
            begin, end = steps.first[first + number : first + number + 2].tolist()
            assert end - begin == len(lane)
            for step in lane:
                sends = step.send_peer != NONE
                after = first + step.dep_lane if step.dep_lane != NONE else NONE
                to = int(steps.member_ptr[step.send_peer]) + step.send_lane if sends else NONE
                payload = of_lanes[me][number].wire_bytes(step.send_chunk, step.send_count, size_bytes) if sends else 0
                found = [int(column[row]) for column in steps[3:]]
                takes = int(step.recv_peer != NONE), int(step.reduce)
                expected = [first + number, me, step.send_peer, to, *takes, after, step.dep_step, payload]
                assert found == expected
                row += 1
    assert row == len(steps.lane)


@pytest.mark.parametrize("size_bytes", [1, 100_003])
@pytest.mark.parametrize(("kind", "algorithm"), ALGORITHMS)
def test_every_algorithm(kind, algorithm, size_bytes):
    graph = topologies.build("switch:npus=8" if algorithm == "nvls" else HOSTS)
    is_as_read(collective_program(kind, graph.npus, size_bytes, algorithm, graph).schedules, size_bytes)


@pytest.mark.parametrize("unit_bytes", [1, 4096])
def test_uneven_all_to_alls(unit_bytes):
    matrix = np.random.default_rng(5).integers(0, 100, (4, 4)) * unit_bytes
    program = uneven_program(matrix, "direct", topologies.build("switch:npus=4"))
    is_as_read(program.schedules, int(program.node_bytes[0]))
