"""Manifests: the short form of lists, what is read back, and files that do not fit; tests/records has wrong ones."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import et
from nadi.workload import TraceSet, WorkloadError, build_program, expand, load_set, read_set, write_set
from nadi.workload.trace_sets.manifest import numbers_of, read_manifest, shortened, written
from nadi.workload.trace_sets.trace_set import ELSEWHERE, IDLE
from tests.budgets import bounded
from tests.refusals import refused

AR = et.CollectiveCommType.ALL_REDUCE
MOST = 10_000
ROOT = Path(__file__).parents[2]


@bounded(300)
@given(st.lists(st.integers(-MOST + 1, MOST - 1), max_size=30))
def test_any_list_is_read_back(numbers):
    assert numbers_of(json.loads(json.dumps(shortened(numbers))), MOST).tolist() == numbers


@bounded(200)
@given(st.data())
def test_nested_steps_become_one_entry(data):
    """Lists that go by steps within steps, in any order of steps."""
    numbers = [data.draw(st.integers(0, 9))]
    for _ in range(data.draw(st.integers(1, 3))):
        count = data.draw(st.integers(3, 5))
        step = data.draw(st.integers(1, 3)) * (max(numbers) - min(numbers) + 1)
        numbers = [n + k * step for k in range(count) for n in numbers]
    entries = shortened(numbers)
    assert len(entries) == 1
    assert numbers_of(entries, MOST).tolist() == numbers


NO_LISTS = (
    7,
    *([[1]], ["1"], [True], [1.0], [MOST]),
    *([{"first": 0}], [{"first": 0, "repeat": [[0, 1]]}], [{"first": 0, "repeat": [[2]]}]),
    *([{"first": "a", "repeat": []}], [{"first": 0, "repeat": 3}], [{"first": 1, "repeat": [[9, MOST]]}]),
    [{"first": 0, "repeat": [[99, 1], [99, 1], [99, 1]]}],
    [{"first": 0, "repeat": [[6000, 1]]}] * 2,
)


@pytest.mark.parametrize("entries", NO_LISTS)
def test_what_is_no_list_of_numbers(entries):
    with pytest.raises(ValueError, match=r"^(found .*|more than 10000 numbers, )expected"):
        numbers_of(entries, MOST)


def regular(tp=8, dp=128, pp=16):
    """A set of a 3-D plan whose traces have one node."""
    npus, stage = tp * dp * pp, tp * dp
    table = et.table_of(et.metadata(), [et.comp_node(0, "c")])
    number = np.arange(npus).reshape(pp, dp, tp)
    families = {
        "tp": tuple(map(tuple, number.reshape(-1, tp).tolist())),
        "dp": tuple(map(tuple, number.transpose(0, 2, 1).reshape(-1, dp).tolist())),
        "pp": tuple(map(tuple, number.transpose(1, 2, 0).reshape(-1, pp).tolist())),
        "embedding": tuple(map(tuple, number[[0, pp - 1]].transpose(1, 2, 0).reshape(-1, 2).tolist())),
        "first two of a stage": tuple((s * stage, s * stage + 1) for s in range(pp)),
    }
    of_npu = (np.arange(npus) // stage).astype(np.int32)
    return TraceSet([table] * pp, of_npu, np.arange(0, npus, stage, dtype=np.int32), families)


def test_a_regular_set_of_16384_npus_has_a_short_manifest(tmp_path):
    traces = regular()
    write_set(tmp_path, traces)
    assert (tmp_path / "traces.json").stat().st_size < 4096
    found = read_set(tmp_path)
    assert found.families == traces.families
    assert found.trace_of_npu.tolist() == traces.trace_of_npu.tolist()


def test_an_irregular_set_is_read_back(tmp_path):
    random = np.random.default_rng(1)
    of_npu = random.integers(-1, 3, 300).astype(np.int32)
    members = random.permutation(300)
    families = {"x": (tuple(members[:7].tolist()), tuple(members[7:100].tolist())), "é": ((5,),)}
    table = et.table_of(et.metadata(), [et.comp_node(0, "c")])
    write_set(tmp_path, TraceSet([table] * 3, of_npu, np.full(3, -1, np.int32), families), "a b")
    found = read_set(tmp_path)
    assert found.families == families
    assert (found.framework, found.copied) == ("", frozenset())
    assert found.trace_of_npu.tolist() == of_npu.tolist()
    assert found.example_npu.tolist() == [-1] * 3


def small(folder, **changed):
    """A set of four NPUs in two traces, with keys of its manifest changed; gives the folder."""
    tables = [
        et.table_of(et.metadata(), [et.coll_node(3, "a", AR, 8, pg_name="pair"), et.send_node(4, "s", 0, 2, 9)]),
        et.table_of(et.metadata(), [et.coll_node(3, "a", AR, 8, pg_name="pair"), et.recv_node(4, "r", 0, 2, 9)]),
    ]
    owner, examples = np.array([0, 0, 1, 1], np.int32), np.array([0, 2], np.int32)
    write_set(folder, TraceSet(tables, owner, examples, {"pair": ((0, 1), (2, 3))}), "x")
    path = folder / "traces.json"
    said = json.loads(path.read_text())
    for key, value in changed.items():
        said[key] = value(said[key]) if callable(value) else value
    path.write_text(json.dumps(said))
    return folder


def test_a_manifest_that_is_a_folder_is_refused(tmp_path):
    (tmp_path / "traces.json").mkdir()
    assert "Is a directory; expected the manifest of a trace set" in refused(WorkloadError, load_set, tmp_path, 4)


def test_a_file_that_is_missing_or_of_another_set(tmp_path):
    folder = small(tmp_path)
    (folder / "x.npu2.et").unlink()
    wanted = f"{folder / 'x.npu2.et'}: no such file, but traces.json names it"
    for own in (None, np.array([True, True, False, False])):  # every rank sees it
        with pytest.raises(WorkloadError, match=f"^{re.escape(wanted)}$"):
            read_set(folder, own=own)
    et.write_trace(folder / "x.npu2.et", et.metadata(), [et.comp_node(0, "c")])
    wanted = f"{folder / 'x.npu2.et'}: 1 nodes, but traces.json says 2"
    with pytest.raises(WorkloadError, match=f"^{re.escape(wanted)}$"):
        read_set(folder)


def test_a_fabric_may_have_more_npus_but_not_fewer(tmp_path):
    folder = small(tmp_path)
    assert load_set(folder, 6).trace_of_npu.tolist() == [0, 0, 1, 1, IDLE, IDLE]
    with pytest.raises(WorkloadError, match=r"traces\.json: traces of 4 NPUs, but the fabric has 3 NPUs$"):
        load_set(folder, 3)


def test_a_rank_opens_what_its_own_npus_run(tmp_path):
    folder = small(tmp_path)
    (folder / "x.npu0.et").write_bytes(b"no trace")
    found = load_set(folder, 4, own=np.array([False, False, False, True]))
    assert found.trace_of_npu.tolist() == [ELSEWHERE, ELSEWHERE, ELSEWHERE, 0]
    assert (len(found.traces), found.example_npu.tolist()) == (1, [2])
    assert found.traces[0].path == str(folder / "x.npu2.et")


def test_a_name_within_a_set_says_that_it_is_one(tmp_path):
    folder = small(tmp_path)
    with pytest.raises(WorkloadError, match=re.escape(f"x.<npu>.et.gz and {folder / 'x'}; {folder} is a trace set")):
        load_set(folder / "x", 4)


def test_a_family_that_lacks_an_npu(tmp_path):
    folder = small(tmp_path, families={"pair": [[0, 1], [2]]})
    traces = read_set(folder)
    with pytest.raises(WorkloadError) as error:
        build_program(traces.traces, traces.trace_of_npu, 4, example_npu=traces.example_npu, families=traces.families)
    where = f'{folder / "x.npu2.et"}: node 3: group "pair"'
    assert str(error.value) == f"{where}: NPU 3 runs it but is in none of the family's 2 groups"
    with pytest.raises(WorkloadError, match=r'x\.npu2\.et: NPU 3 runs it but is in no group of the family "pair"$'):
        expand(traces, tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


def test_a_family_and_a_group_file_of_one_name(tmp_path):
    traces = read_set(small(tmp_path))
    with pytest.raises(WorkloadError, match=r'^group "pair": stands in the group file, too, but is a family'):
        build_program(
            traces.traces,
            traces.trace_of_npu,
            4,
            {"pair": (0, 1, 2, 3)},
            example_npu=traces.example_npu,
            families=traces.families,
        )


def test_peers_that_the_fabric_lacks():
    table = et.table_of(et.metadata(), [et.send_node(4, "s", 1, 3, 9)], "x.et")
    with pytest.raises(WorkloadError) as error:
        build_program([table], [0, 0, 0], 4 - 1, example_npu=[1])
    assert str(error.value) == "x.et: node 4: comm_dst is 3, expected an NPU from 0 to 2"
    with pytest.raises(WorkloadError) as error:
        build_program([table], [0, 0, 0, -1], 4, example_npu=[1])
    said = "comm_dst is 3 for NPU 1, which means 4 for NPU 2, expected an NPU from 0 to 3"
    assert str(error.value) == f"x.et: node 4: {said}"


def test_ends_that_are_not_the_users():
    itself = et.table_of(et.metadata(), [et.send_node(4, "s", 1, 1, 9)], "x.et")
    other = et.table_of(et.metadata(), [et.send_node(4, "s", 2, 3, 9)], "x.et")
    said = {
        id(itself): "sends to or receives from itself, expected another peer (comm_src 1, comm_dst 1",
        id(other): "runs it, but its own end is another NPU's (comm_src 2, comm_dst 3",
    }
    for table in (itself, other):
        assert (
            refused(WorkloadError, build_program, [table], [0, 0, -1, -1, -1], 5, example_npu=[1])
            == f"x.et: node 4: NPU 0 {said[id(table)]}, as NPU 1 has it)"
        )


def test_a_message_without_its_counterpart_names_the_pair(tmp_path):
    traces = read_set(small(tmp_path))
    traces.traces[1] = et.table_of(
        et.metadata(), [et.coll_node(3, "a", AR, 8, pg_name="pair"), et.recv_node(4, "r", 0, 2, 10)], "other.et"
    )
    with pytest.raises(WorkloadError) as error:
        build_program(traces.traces, traces.trace_of_npu, 4, example_npu=traces.example_npu, families=traces.families)
    said = "NPU 0 sends 9 B, but NPU 2 expects 10 B (other.et: node 4)"
    assert str(error.value) == f"{tmp_path / 'x.npu0.et'}: node 4: {said}"


def test_where_other_traces_are_nothing_is_written(tmp_path):
    traces = regular(2, 2, 2)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "gpt.0.et").touch()
    for write in (write_set, expand):
        with pytest.raises(WorkloadError, match=re.escape(f"{tmp_path / 's' / 'gpt.0.et'}: of other traces, expected")):
            write(traces, tmp_path / "s") if write is expand else write(tmp_path / "s", traces)
    assert [file.name for file in (tmp_path / "s").iterdir()] == ["gpt.0.et"]
    (tmp_path / "file").touch()
    with pytest.raises(WorkloadError, match="expected a folder to write traces to"):
        write_set(tmp_path / "file" / "s", traces)
    with pytest.raises(WorkloadError, match="prefix 'a/b': expected the beginning of names of files"):
        write_set(tmp_path / "new", traces, "a/b")
    assert not (tmp_path / "new").exists()


def test_writing_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise et.TraceError("disk")

    monkeypatch.setattr("nadi.workload.trace_sets.files.write_table", fail)
    with pytest.raises(WorkloadError, match="disk"):
        write_set(tmp_path / "a" / "b", regular(2, 2, 2))
    assert list(tmp_path.iterdir()) == []


def test_a_set_is_written_over_its_own_earlier_files(tmp_path):
    write_set(tmp_path, regular(2, 2, 2))
    write_set(tmp_path, regular(2, 2, 2))
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(WorkloadError, match="of other traces"):
        write_set(tmp_path, regular(2, 2, 2), "other")


def test_a_trace_that_nobody_runs(tmp_path):
    table = et.table_of(et.metadata(), [])
    for owner, example, said in (
        ([0, 0], [0, 1], "trace 1 of the set: no NPU runs it"),
        ([0, 1], [1, 1], "trace 0 of"),
    ):
        made = TraceSet([table] * 2, np.array(owner, np.int32), np.array(example, np.int32))
        with pytest.raises(WorkloadError, match=said):
            write_set(tmp_path / "s", made)


def test_the_documents_example_of_a_manifest_is_one(tmp_path):
    text = (ROOT / "docs" / "reference" / "traces.md").read_text()
    (tmp_path / "traces.json").write_text(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])
    said = read_manifest(tmp_path / "traces.json")
    assert said.trace_of_npu.tolist() == [0] * 2048 + [1] * 2048
    assert said.families["dp"][9] == tuple(range(2049, 4096, 8))
    (tmp_path / "traces.json").write_text(written(said))
    assert read_manifest(tmp_path / "traces.json").families == said.families


def test_the_documents_example_in_python_makes_a_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "reference" / "traces.md").read_text()
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], {})  # noqa: S102 - it is our own
    assert [len(table) for table in read_set("traces").traces] == [192]
