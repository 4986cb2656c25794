import re

import numpy as np
import pytest

from nadi.et import TraceError, comp_node, metadata, write_trace
from nadi.workload import WorkloadError, groups_of, load_traces
from nadi.workload.trace_sets.trace_set import ELSEWHERE, IDLE


def put(path, micros=1):
    write_trace(path, metadata(), [comp_node(0, "c", duration_micros=micros)])


def test_equal_files_are_read_once(tmp_path):
    for npu, micros in enumerate([1, 2, 1, 1]):
        put(tmp_path / f"w.{npu}.et", micros)
    traces, own = load_traces(tmp_path / "w", 4)
    assert own.tolist() == [0, 1, 0, 0]
    assert own.dtype == "int32"
    assert [t.path for t in traces] == [str(tmp_path / "w.0.et"), str(tmp_path / "w.1.et")]


def test_npus_without_a_file_are_idle(tmp_path):
    put(tmp_path / "w.2.et.gz")
    put(tmp_path / "w.x.et")
    put(tmp_path / "other.w.1.et")
    put(tmp_path / "wx.1.et")
    _, own = load_traces(str(tmp_path / "w"), 4)
    assert own.tolist() == [-1, -1, 0, -1]


def test_one_file_is_for_all(tmp_path):
    put(tmp_path / "w.et")
    traces, own = load_traces(tmp_path / "w.et", 3)
    assert (len(traces), own.tolist()) == (1, [0, 0, 0])


def test_special_characters_in_the_prefix_are_themselves(tmp_path):
    put(tmp_path / "w[1]+.0.et")
    _, own = load_traces(tmp_path / "w[1]+", 1)
    assert own.tolist() == [0]


def test_no_file_says_what_was_looked_for(tmp_path):
    for prefix in (tmp_path / "w", tmp_path / "gone" / "w"):
        wanted = f"{prefix}: no traces, looked for {prefix}.<npu>.et, {prefix}.<npu>.et.gz and {prefix}"
        with pytest.raises(WorkloadError, match=f"^{re.escape(wanted)}$"):
            load_traces(prefix, 2)


def test_a_folder_is_its_only_prefix(tmp_path):
    put(tmp_path / "w.0.et")
    put(tmp_path / "w.2.et")
    traces, own = load_traces(tmp_path, 3)
    assert (len(traces), own.tolist()) == (1, [0, IDLE, 0])
    assert groups_of(tmp_path) is None
    (tmp_path / "groups.json").write_text("{}")
    assert groups_of(tmp_path) == tmp_path / "groups.json"
    assert groups_of(tmp_path / "w") is None
    put(tmp_path / "v.0.et")
    with pytest.raises(WorkloadError, match=r"traces of 2 prefixes, expected one of them \(.*/v, .*/w\)$"):
        load_traces(tmp_path, 3)


def test_a_file_for_an_npu_too_many(tmp_path):
    put(tmp_path / "w.0.et")
    put(tmp_path / "w.10.et")
    with pytest.raises(WorkloadError, match=r"w\.10\.et: trace of NPU 10, but the fabric has 10 NPUs$"):
        load_traces(tmp_path / "w", 10)


def test_two_files_for_one_npu(tmp_path):
    put(tmp_path / "w.1.et")
    put(tmp_path / "w.1.et.gz")
    with pytest.raises(
        WorkloadError, match=r"w\.1\.et\.gz: second trace of NPU 1, besides w\.1\.et, expected one per NPU$"
    ):
        load_traces(tmp_path / "w", 10)


def test_a_file_that_is_wrong(tmp_path):
    put(tmp_path / "w.0.et")
    whole = (tmp_path / "w.0.et").read_bytes()
    (tmp_path / "w.0.et").write_bytes(whole[:-1])
    with pytest.raises(TraceError):
        load_traces(tmp_path / "w", 1)


def test_a_rank_opens_the_files_of_its_own_npus_only(tmp_path):
    for npu in (0, 3, 4):
        put(tmp_path / f"w.{npu}.et", npu // 4)
    (tmp_path / "w.1.et").mkdir()  # cannot be read
    (tmp_path / "w.2.et").write_bytes(b"no trace")
    traces, own = load_traces(tmp_path / "w", 6, own=np.array([True, False, False, True, True, True]))
    assert own.tolist() == [0, ELSEWHERE, ELSEWHERE, 0, 1, IDLE]
    assert [t.path for t in traces] == [str(tmp_path / "w.0.et"), str(tmp_path / "w.4.et")]
    traces, own = load_traces(tmp_path / "w", 6, own=np.zeros(6, np.bool_))
    assert (traces, own.tolist()) == ([], [ELSEWHERE] * 6)


def test_one_file_is_for_all_ranks_that_have_npus(tmp_path):
    put(tmp_path / "w.et")
    traces, own = load_traces(tmp_path / "w.et", 3, own=np.array([False, True, True]))
    assert (len(traces), own.tolist()) == (1, [ELSEWHERE, 0, 0])
    (tmp_path / "w.et").write_bytes(b"no trace")
    traces, own = load_traces(tmp_path / "w.et", 2, own=np.zeros(2, np.bool_))
    assert (traces, own.tolist()) == ([], [ELSEWHERE] * 2)


def test_every_rank_finds_files_that_are_missing_or_too_many(tmp_path):
    nobody = np.zeros(10, np.bool_)
    with pytest.raises(WorkloadError, match="no traces, looked for"):
        load_traces(tmp_path / "w", 10, own=nobody)
    put(tmp_path / "w.10.et")
    with pytest.raises(WorkloadError, match=r"w\.10\.et: trace of NPU 10, but the fabric has 10 NPUs$"):
        load_traces(tmp_path / "w", 10, own=nobody)


def test_a_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "w.0.et").mkdir()
    with pytest.raises(WorkloadError, match=r"w\.0\.et: Is a directory; expected a trace$"):
        load_traces(tmp_path / "w", 1)
