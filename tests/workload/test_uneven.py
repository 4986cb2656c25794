"""All-to-all with another number of bytes for each pair."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from nadi import topologies
from nadi.pdes import Settings
from nadi.workload import WorkloadError, collective_program, collectives
from nadi.workload.collectives.plans.plan import NONE
from nadi.workload.collectives.schedules.checks import checked
from nadi.workload.collectives.schedules.oracle import OracleError
from nadi.workload.collectives.schedules.packed import pack
from nadi.workload.collectives.schedules.sends import buffers, unpack
from nadi.workload.collectives.uneven import ALGORITHMS, all_to_all_v, buffer_bytes, units
from tests.nonempty import nonempty
from tests.pdes import compare
from tests.refusals import refused
from tests.workload.uneven_oracle import check_uneven

HOSTS = (0, 0, 1, 1, 0, 0, 1, 1)


def routed(members=8, seed=0):
    """What a router of tokens of 1,536 bytes could do: few experts are wanted by many, some by none."""
    rng = np.random.default_rng(seed)
    wanted = rng.dirichlet(np.full(members, 0.4))
    return np.stack([rng.multinomial(24, wanted) for _ in range(members)]) * 1536


def cases():
    few = routed()
    few[3] = few[:, 5] = 0  # who sends nothing, who gets nothing
    return {
        "routed": routed(),
        "another": routed(seed=3),
        "few": few,
        "one": np.diag([0, 0, 7]) + np.eye(3, k=1, dtype=int),
    }


def plans_of(algorithm, matrix):
    hosts = HOSTS if len(matrix) == len(HOSTS) else range(len(matrix))
    return all_to_all_v(matrix, algorithm, hosts)


def messages(plans, matrix):
    """Bytes sent from member to member in all, and how many messages."""
    schedules, size = pack([plans]), buffer_bytes(plans, matrix)
    sent, number = np.zeros_like(matrix), 0
    for me, (lanes, own) in enumerate(zip(unpack(schedules, 0), buffers(schedules, 0), strict=True)):
        for steps, buffer in zip(lanes, own, strict=True):
            for step in steps:
                if step.send_peer != NONE:
                    sent[me, step.send_peer] += buffer.wire_bytes(step.send_chunk, step.send_count, size)
                    number += 1
    return sent, number


@pytest.mark.parametrize("matrix", cases().values(), ids=cases())
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_end_with_what_is_meant_for_them(algorithm, matrix):
    plans = checked(plans_of(algorithm, matrix), algorithm, "all-to-all")
    schedules = pack([plans])
    for seed in range(5):
        check_uneven(schedules, 0, units(matrix).sent, seed)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_check_notices_another_matrix(algorithm):
    matrix = routed()
    other = units(matrix).sent.copy()
    other[1, 2:4] += (1, -1)
    with pytest.raises(OracleError):
        check_uneven(pack([plans_of(algorithm, matrix)]), 0, other)


@pytest.mark.parametrize("matrix", cases().values(), ids=cases())
@pytest.mark.parametrize("algorithm", ["direct", "pairwise"])
def test_every_message_has_its_bytes(algorithm, matrix):
    wanted = matrix * (1 - np.eye(len(matrix), dtype=int))
    sent, number = messages(plans_of(algorithm, matrix), matrix)
    assert sent.tolist() == wanted.tolist()
    assert number == np.count_nonzero(wanted)


def test_between_hosts_only_equal_places_meet():
    matrix = routed()
    sent, _ = messages(plans_of("hierarchical", matrix), matrix)
    place = np.array([0, 1, 0, 1, 2, 3, 2, 3])
    host = np.array(HOSTS)
    for src, dst in nonempty(np.argwhere(sent)):
        expected = 0
        if host[src] == host[dst]:
            expected = matrix[src, place == place[dst]].sum()
        elif place[src] == place[dst]:
            expected = matrix[host == host[src], dst].sum()
        assert sent[src, dst] == expected
    crossing = host[:, None] != host[None, :]
    assert sent[crossing].sum() == matrix[crossing].sum()


def test_even_sizes_are_the_even_all_to_all():
    """Unlike it, the own block is copied."""
    matrix = np.full((5, 5), 4096)
    ours, known = (pack([p]) for p in (all_to_all_v(matrix, "pairwise"), collectives.plan("all-to-all", "pairwise", 5)))
    sends = [
        Counter(
            (me, s.send_peer, s.send_chunk, s.recv_peer, s.recv_chunk) for lane in own for s in lane if s.send_peer >= 0
        )
        for schedules in (ours, known)
        for me, own in enumerate(unpack(schedules, 0))
    ]
    assert sends[:5] == sends[5:]
    assert units(matrix)[:2] == (4096, 5)


@pytest.mark.parametrize("matrix", [routed(), cases()["few"]], ids=["routed", "few"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_engine_moves_these_bytes(monkeypatch, algorithm, matrix):
    plans = plans_of(algorithm, matrix)
    module = SimpleNamespace(NAME="uneven", KINDS=("all-to-all",), plan=lambda *_: plans)
    monkeypatch.setattr(collectives, "known_algorithms", lambda: {"uneven": module})
    program = collective_program("all-to-all", 8, buffer_bytes(plans, matrix), "uneven")
    results = compare.check(topologies.build("switch:npus=8"), program, Settings())
    moved = np.zeros((8, 8), np.int64)
    np.add.at(moved, (results.flows["src"], results.flows["dst"]), results.flows["bytes"])
    assert moved.tolist() == messages(plans, matrix)[0].tolist()


@pytest.mark.parametrize(
    ("matrix", "text"),
    [
        ([[1, 2], [3, -4]], "all-to-all-v: -4 B from member 1 to 1, expected 0 or more"),
        ([[1, 2, 3], [4, 5, 6]], "all-to-all-v: a matrix of 2 x 3, expected a square one of bytes"),
        ([[1, 2], [3]], "all-to-all-v: rows of unlike lengths, expected a square matrix of bytes"),
        ([1, 2], "all-to-all-v: a matrix of 2, expected a square one of bytes"),
        ([[1.5]], "all-to-all-v: a matrix of float64, expected whole numbers of bytes"),
        ([[1, 1 << 40], [0, 0]], "all-to-all-v: 1099511627777 units of 1 B in a buffer, expected at most 268435456"),
    ],
)
def test_matrices_that_cannot_be_are_refused(matrix, text):
    assert refused(WorkloadError, all_to_all_v, matrix, "direct") == text


@pytest.mark.parametrize(
    ("algorithm", "hosts", "text"),
    [
        ("bruck", None, "algorithm 'bruck' for all-to-all-v: expected one of direct, pairwise, hierarchical"),
        ("hierarchical", None, "all-to-all-v, hierarchical: hosts of none members, expected of 3"),
        ("hierarchical", (0, 0), "all-to-all-v, hierarchical: hosts of 2 members, expected of 3"),
        ("hierarchical", (0, 0, 1), "all-to-all-v, hierarchical: hosts of 1 to 2 members, expected as many on each"),
    ],
)
def test_algorithms_and_hosts_that_cannot_be_are_refused(algorithm, hosts, text):
    assert refused(WorkloadError, all_to_all_v, np.ones((3, 3), int), algorithm, hosts) == text
