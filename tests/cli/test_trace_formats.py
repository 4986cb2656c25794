"""Converted traces run, and take as long as what they were made of."""

import pytest

from nadi import et

LAYERS = """HYBRID_TRANSFORMER model_parallel_NPU_group: 2
2
a -1 5000 ALLREDUCE 65536 5000 ALLREDUCE 65536 4000 ALLREDUCE 131072 0
b -1 7000 ALLREDUCE 65536 7000 ALLREDUCE 65536 6000 ALLREDUCE 131072 0
"""


@pytest.fixture
def finish(nadi, write_run):
    """When a run of traces ends, in picoseconds."""
    run = write_run([], text='[system.collectives]\nall-reduce = "ring"\n')

    def of(prefix):
        text = [f'workload.traces="{prefix}"']
        groups = prefix.parent / "groups.json"
        text += [f'workload.groups="{groups}"'] * groups.is_file()
        outcome = nadi("run", run, *(word for setting in text for word in ("--set", setting)), "--json")
        assert outcome.code == 0, outcome
        return outcome.document["finish_time_ps"]

    return of


def converted(nadi, source, out, *more):
    outcome = nadi("trace", "convert", source, "-o", out, *more)
    assert outcome.code == 0, outcome
    return out


def test_layers_become_json_and_goal_and_chakra_again_and_all_take_as_long(nadi, finish, tmp_path):
    (tmp_path / "x.txt").write_text(LAYERS)
    first = converted(nadi, tmp_path / "x.txt", tmp_path / "et", "--from", "astra-sim:npus=4")
    json = converted(nadi, first, tmp_path / "json", "--to", "json")
    again = converted(nadi, json, tmp_path / "again")
    goal = converted(nadi, first, tmp_path / "goal", "--to", "goal")
    messages = converted(nadi, goal / "trace.goal", tmp_path / "messages")
    for folder in (first, again, messages):
        assert nadi("trace", "check", folder, "--strict").code == 0
    for npu in range(4):
        assert (again / f"trace.{npu}.et").read_bytes() == (first / f"trace.{npu}.et").read_bytes()
    as_collectives = finish(first / "trace")
    assert finish(again / "trace") == as_collectives
    computing_ps = sum(int(line.split()[i]) for line in LAYERS.splitlines()[2:] for i in (2, 5, 8)) * 1000
    assert as_collectives > computing_ps
    # ring steps by messages in place of a ring: they have the same sizes and the same order
    assert finish(messages / "trace") == pytest.approx(as_collectives, rel=0.02)


def test_a_collective_alone_takes_as_long_as_the_same_one_of_a_chakra_trace(nadi, finish, tmp_path):
    (tmp_path / "x.txt").write_text("MICRO\n1\nconv1 -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 1048576 5\n")
    made = converted(nadi, tmp_path / "x.txt", tmp_path / "made", "--from", "astra-sim:npus=4")
    (tmp_path / "own").mkdir()
    for npu in range(4):
        node = et.coll_node(0, "x", et.CollectiveCommType.ALL_REDUCE, 1048576)
        et.write_trace(tmp_path / "own" / f"trace.{npu}.et", et.metadata(), [node])
    assert finish(made / "trace") == finish(tmp_path / "own" / "trace")
