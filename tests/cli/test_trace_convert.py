"""`nadi trace convert`: what all formats share."""

import pytest

from nadi import et


@pytest.fixture
def traces(tmp_path):
    for npu in range(2):
        et.write_trace(tmp_path / "in" / f"a.{npu}.et", et.metadata(), [et.comp_node(1, "x")])
    return tmp_path / "in"


@pytest.fixture(autouse=True)
def _folder(tmp_path):
    (tmp_path / "in").mkdir()


def test_the_kind_is_found_and_all_is_reported(nadi, traces, tmp_path):
    outcome = nadi("trace", "convert", traces, "-o", tmp_path / "out", "--prefix", "b", "--json")
    assert outcome.code == 0
    said = outcome.document
    assert (said["from"], said["to"], said["npus"], said["files"]) == ("chakra", "chakra", 2, ["b.0.et", "b.1.et"])
    assert (tmp_path / "out" / "b.1.et").read_bytes() == (traces / "a.1.et").read_bytes()
    shown = nadi("trace", "convert", traces, "-o", tmp_path / "table", "--prefix", "b").out
    assert "b.0.et .. b.1.et (2 files)" in shown


def test_a_trace_set_is_converted_as_its_traces_for_each_npu_are(nadi, tmp_path):
    traces, plain = tmp_path / "set", tmp_path / "plain"
    assert nadi("workload", "megatron", "--model", "gpt3-125m", "--plan", "tp2,pp2,dp2,gb4", "-o", traces).code == 0
    assert nadi("trace", "expand", traces, "-o", plain).code == 0
    for to in ("chakra", "json"):
        said = nadi("trace", "convert", traces, "-o", tmp_path / to, "--to", to, "--json").document
        assert (said["from"], said["npus"]) == ("chakra", 8)
        wanted = plain
        if to != "chakra":
            wanted = tmp_path / f"{to}-of-plain"
            assert nadi("trace", "convert", plain, "-o", wanted, "--to", to).code == 0
        names = sorted(file.name for file in wanted.iterdir())
        assert sorted(file.name for file in (tmp_path / to).iterdir()) == names
        assert len(names) == 9  # with groups.json
        assert all((tmp_path / to / name).read_bytes() == (wanted / name).read_bytes() for name in names)
