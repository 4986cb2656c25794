"""Plans that members share although their peers differ."""

import numpy as np
import pytest

from nadi import et
from nadi.et import CollectiveCommType
from nadi.pdes import Settings, build_world
from nadi.topologies import build
from nadi.workload import CollectiveSettings, collectives
from nadi.workload.collectives.plans.plan import Lane, each_its_own
from nadi.workload.collectives.schedules.packed import pack
from nadi.workload.collectives.schedules.sends import peers_of_members, unpack
from nadi.workload.program.building import WorkOfRanks
from nadi.workload.program.jobs import FabricJob, build_jobs
from nadi.workload.shape import shape_of
from tests.nonempty import nonempty

HOSTS = "dgx-h100:npus=512"
TREE = "nccl:algo=tree"
SIZE = 1 << 26


def tree_of(npus):
    """NCCL's trees over these NPUs of HOSTS."""
    graph = build(HOSTS)
    return collectives.plan("all-reduce", TREE, len(npus), shape_of(graph, np.array(npus, np.int32)), SIZE)


def scattered(count, seed=1):
    return np.random.default_rng(seed).permutation(512)[:count].astype(np.int32)


def test_members_with_other_peers_share_a_plan():
    """A chain: the first, the last and all between. The lanes of the peers differ, too."""
    members = 6
    lanes = [[Lane() for _ in range(1 + member % 2)] for member in range(members)]
    for member, own in enumerate(lanes):
        own[0].copy(0, to=0)
        if member > 0:
            own[-1].step(receive_from=member - 1)
        if member < members - 1:
            own[-1].step(send_to=member + 1, to_lane=len(lanes[member + 1]) - 1)
    plans = each_its_own(1, lanes)
    packed = pack([plans])
    assert packed.plan_of.tolist() == [0, 1, 2, 1, 2, 3]
    assert packed.list_first.tolist() == [0, 2, 5, 8, 11, 14]
    assert packed.peer_list.tolist() == [1, 1, 2, 0, 0, 3, 1, 1, 4, 2, 0, 5, 3, 1, 4]
    assert unpack(packed, 0) == [[list(lane) for lane in plan] for plan in plans.plans]
    assert peers_of_members(packed, 0) == [[1], [2], [3], [4], [5], []]


def test_plans_that_no_other_member_has_name_members():
    """Without a member that does the same, lists would only add to the memory."""
    lanes = [[Lane().step(send_to=1 - member, send=member, receive_from=1 - member)] for member in range(2)]
    packed = pack([each_its_own(2, lanes)])
    assert packed.send_peer.tolist() == [1, 0]
    assert packed.list_first.tolist() == [-1, -1]
    assert packed.peer_list.tolist() == []


@pytest.mark.parametrize("pieces", [1 << 19, 1 << 14])
def test_trees_over_scattered_npus_are_read_back_as_planned(pieces, monkeypatch):
    monkeypatch.setattr("nadi.workload.collectives.schedules.checks._SHARED_STEPS", pieces)
    all_plans = [tree_of(scattered(96, seed)) for seed in (1, 2)]
    packed = pack(all_plans)
    assert packed.list_first.min() == 0
    for index, plans in nonempty(enumerate(all_plans)):
        assert unpack(packed, index) == [[list(lane) for lane in plan] for plan in plans.plans]


def test_the_number_of_plans_hardly_grows_with_the_members():
    small, large = (pack([tree_of(scattered(count))]) for count in (64, 256))
    assert len(large.plan_ptr) < 1.5 * len(small.plan_ptr)
    assert len(large.plan_ptr) < 256 / 4


def test_schedules_share_plans():
    """A second group, of another placement, adds few plans."""
    one, two = (pack([tree_of(scattered(512, seed)) for seed in seeds]) for seeds in ((1,), (1, 2)))
    assert len(two.steps) < 1.2 * len(one.steps)


def bytes_of(value):
    """Bytes of all arrays of a program or a world."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(map(bytes_of, value)) if isinstance(value, tuple) else 0


def set_up_bytes(placement):
    """Bytes of the program and the world of two jobs, with all-reduces in four groups of 64 each and among all."""
    graph = build(HOSTS)
    groups = {f"stage {stage}": tuple(range(64 * stage, 64 * (stage + 1))) for stage in range(4)}
    tables = [
        et.table_of(
            et.metadata(),
            [
                et.coll_node(0, "gradients", CollectiveCommType.ALL_REDUCE, SIZE, pg_name=name),
                et.coll_node(1, "norm", CollectiveCommType.ALL_REDUCE, 8, deps=[0]),
            ],
        )
        for name in groups
    ]
    settings = CollectiveSettings({"all-reduce": TREE})
    work = WorkOfRanks(tables, np.repeat(np.arange(4), 64), 256, groups, None, settings)
    jobs = [FabricJob(name, work, npus, 0) for name, npus in zip("ab", np.split(placement, 2), strict=True)]
    program = build_jobs(jobs, graph, np.ones(graph.npus, bool))
    world = build_world(graph, program, Settings()).lps[0].world
    return bytes_of(program) + bytes_of(world)


def test_scattered_jobs_take_little_more_memory_than_packed_ones():
    packed, elsewhere = (set_up_bytes(placement) for placement in (np.arange(512, dtype=np.int32), scattered(512)))
    assert elsewhere < 1.2 * packed, (elsewhere, packed)
