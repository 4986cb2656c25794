import os
from pathlib import Path

import pytest

from nadi import et


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_same_messages_same_bytes_even_zipped(tmp_path, small_trace):
    for name in ("a.et", "a.et.gz"):
        (tmp_path / "other").mkdir(exist_ok=True)
        et.write_trace(tmp_path / name, *small_trace)
        et.write_trace(tmp_path / "other" / f"b-{name}", *small_trace)
        assert (tmp_path / name).read_bytes() == (tmp_path / "other" / f"b-{name}").read_bytes()


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, small_trace):
    path = tmp_path / "t.0.et"
    path.write_bytes(b"old")
    metadata, nodes = small_trace

    def interrupted():
        yield from nodes
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        et.write_trace(path, metadata, interrupted())
    assert names(tmp_path) == ["t.0.et"]
    assert path.read_bytes() == b"old"


def test_nothing_but_the_trace_remains(tmp_path, small_trace):
    et.write_trace(tmp_path / "t.et", *small_trace)
    assert names(tmp_path) == ["t.et"]


@pytest.mark.parametrize("place", ["missing/t.et", "file/t.et", "folder"])
def test_unwritable_output_is_an_error_that_names_the_path(tmp_path, small_trace, place):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(et.TraceError, match=f"{place}: .*expected a place to write a trace to") as caught:
        et.write_trace(tmp_path / place, *small_trace)
    assert caught.value.exit_code == 2
    assert names(tmp_path) == ["file", "folder"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error(tmp_path, small_trace, monkeypatch):
    path = tmp_path / "t.et"
    open_file = os.open
    monkeypatch.setattr(os, "open", lambda *_, **__: open_file("/dev/full", os.O_WRONLY))
    with pytest.raises(et.TraceError, match=r"t.et: No space left on device"):
        et.write_trace(path, *small_trace)
    assert names(tmp_path) == []
