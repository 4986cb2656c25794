"""Phases of collectives that take turns in a dimension (npu/tokens.py): times to the picosecond, and who goes next."""

from types import SimpleNamespace

import numpy as np
import pytest

from nadi.et import CollectiveCommType, coll_node, metadata, table_of
from nadi.workload import CollectiveSettings, build_program, collective_program, collectives
from nadi.workload.collectives.plans.plan import Lane, everyone_alike
from tests.scenarios.closed_forms import Hop, steps_ps
from tests.scenarios.running import simulate

NPUS = 5
RING = f"ring:npus={NPUS}"
ONE_LINK = Hop(1, 500_000)
G400 = 400 * 10**9
MESSAGE = 4096
ROUNDED = 1e-12


def ring(part, parts, phase, gate=0):
    """An all-reduce of one part of the buffer."""
    lane = Lane(part=part, parts=parts, phase=phase, gate=gate)
    to, n = phase, NPUS
    for k in range(n - 1):
        chunks = {"send": (-1 - k) % n, "receive": (-2 - k) % n}
        lane.step(send_to=1, to_lane=to, receive_from=n - 1, reduce=True, **chunks)
    for k in range(n - 1):
        lane.step(send_to=1, to_lane=to, receive_from=n - 1, send=-k % n, receive=(-1 - k) % n)
    return lane


@pytest.fixture
def use(monkeypatch):
    """Makes the registry know one algorithm of given lanes."""

    def made(lanes):
        module = SimpleNamespace(
            NAME="fixed", KINDS=("all-reduce",), plan=lambda *_: everyone_alike(NPUS, NPUS, lanes), closed_form=None
        )
        monkeypatch.setattr(collectives, "known_algorithms", lambda: {"fixed": module})

    return made


def alone_ps(message, times=1):
    return times * steps_ps(2 * (NPUS - 1), message, ONE_LINK, G400, shared=False)


@pytest.mark.parametrize("phases", [2, 3])
def test_one_token_makes_phases_follow_each_other(use, phases):
    use([ring(k, phases, k) for k in range(phases)])
    program = collective_program("all-reduce", NPUS, phases * NPUS * MESSAGE, "fixed")
    results = simulate(RING, program, phases_per_dimension=1)
    assert results.finish_time_ps == pytest.approx(alone_ps(MESSAGE, phases), rel=ROUNDED)
    assert simulate(RING, program).finish_time_ps < 0.9 * results.finish_time_ps
    enough = simulate(RING, program, phases_per_dimension=phases)
    assert enough.digest == simulate(RING, program).digest


def test_dimensions_have_tokens_of_their_own(use):
    """Two phases in two dimensions do not wait for each other."""
    use([ring(k, 2, k, gate=k) for k in range(2)])
    program = collective_program("all-reduce", NPUS, 2 * NPUS * MESSAGE, "fixed")
    assert simulate(RING, program, phases_per_dimension=1).digest == simulate(RING, program).digest


@pytest.mark.parametrize(
    ("scheduling", "order"), [("fifo", [1, 2, 3, 4]), ("lifo", [1, 4, 3, 2]), ("priority", [1, 3, 2, 4])]
)
def test_who_goes_next(use, scheduling, order):
    """Four collectives at once, of 1 to 4 packets a message; the third has the highest priority."""
    use([ring(0, 1, 0)])
    priority = {1: 0, 2: 5, 3: 9, 4: 5}
    nodes = [coll_node(i, f"c{i}", CollectiveCommType.ALL_REDUCE, i * NPUS * MESSAGE, pg_name=f"{i}") for i in priority]
    for node in nodes:
        node.attr.add(name="comm_priority", int32_val=priority[node.id])
    everyone = tuple(range(NPUS))
    program = build_program(
        [table_of(metadata(), nodes)],
        np.zeros(NPUS, np.int32),
        NPUS,
        {f"{i}": everyone for i in priority},
        settings=CollectiveSettings({"all-reduce": "fixed"}),
    )
    results = simulate(RING, program, phases_per_dimension=1, scheduling=scheduling)
    finish_ps = results.node_finish_ps.reshape(NPUS, 4)
    expected = np.cumsum([alone_ps(packets * MESSAGE) for packets in order])
    assert finish_ps.max(axis=0)[[packets - 1 for packets in order]] == pytest.approx(expected, rel=1e-3)


def test_who_is_called_comes(use):
    """Members that chose differently do not wait for each other for ever.

    NPU 0 is late for the first of two collectives, so it begins the second; the others have begun the first.
    """
    use([ring(0, 1, 0)])
    first, second = (
        coll_node(i, f"c{i}", CollectiveCommType.ALL_REDUCE, NPUS * MESSAGE, pg_name=f"{i}") for i in (1, 2)
    )
    tables = [table_of(metadata(), nodes) for nodes in ((first, second), (second, first))]
    program = build_program(
        tables,
        np.array([1, *[0] * (NPUS - 1)], np.int32),
        NPUS,
        {f"{i}": tuple(range(NPUS)) for i in (1, 2)},
        settings=CollectiveSettings({"all-reduce": "fixed"}),
    )
    results = simulate(RING, program, phases_per_dimension=1)
    assert alone_ps(MESSAGE) < results.finish_time_ps < alone_ps(MESSAGE, 3)
