"""A folder of results: complete or not there, and of one run at a time."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nadi.errors import OutputError
from nadi.reports.staging import staged

FILES = ("summary.json", "a.parquet", "b.parquet")


def write(out, text="1", files=FILES):
    with staged(out, FILES) as folder:
        for name in files:
            (folder / name).write_text(text)


def found(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("way", ["out", "a/b/out"])
def test_nothing_has_its_name_before_all_is_complete(tmp_path, way):
    out = tmp_path / way
    with staged(out, FILES) as folder:
        (folder / "summary.json").write_text("1")
        assert not (tmp_path / way.split("/")[0]).exists()
        assert folder.parent == tmp_path
    assert found(out) == {"summary.json": "1"}
    assert [path.name for path in tmp_path.iterdir()] == [way.split("/")[0]]


def test_a_folder_that_is_there_keeps_what_is_not_ours(tmp_path):
    write(tmp_path)
    (tmp_path / "notes").write_text("mine")
    write(tmp_path, "2", FILES[:2])
    assert found(tmp_path) == {"summary.json": "2", "a.parquet": "2", "notes": "mine"}


@pytest.mark.parametrize("exists", [False, True])
def test_a_second_run_is_told_who_writes_there(tmp_path, exists):
    out = tmp_path / "out"
    if exists:
        out.mkdir()
    with staged(out, FILES) as folder:
        (folder / "summary.json").write_text("first")
        for other in (out, tmp_path / "x" / ".." / "out"):
            with pytest.raises(OutputError, match=rf"another run \(process {os.getpid()} on .* is writing"):
                write(other)
        with staged(tmp_path / "beside", FILES) as beside:
            (beside / "summary.json").write_text("other")
    assert found(out) == {"summary.json": "first"}
    write(out, "second")
    assert found(out)["summary.json"] == "second"


def test_a_run_that_began_before_the_folder_was_there_still_holds_it(tmp_path):
    out = tmp_path / "a" / "out"
    with staged(out, FILES) as folder:
        (folder / "summary.json").write_text("first")
        out.mkdir(parents=True)
        (out / "notes").write_text("mine")
        with pytest.raises(OutputError, match="another run"):
            write(out)
    assert found(out) == {"summary.json": "first", "notes": "mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("exists", [False, True])
def test_what_a_killed_run_has_left_the_next_removes(tmp_path, exists):
    out = tmp_path / "out"
    if exists:
        out.mkdir()
    code = (
        "import os, signal, sys; from pathlib import Path; from nadi.reports.staging import staged\n"
        "with staged(Path(sys.argv[1]), ['summary.json']) as folder:\n"
        "    (folder / 'summary.json').write_text('half'); (folder / 'deep').mkdir()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, out], timeout=60).returncode == -9
    (left,) = tmp_path.rglob(".nadi-*")
    assert (left / "deep").is_dir()
    out.mkdir(exist_ok=True)
    write(out)
    assert [path.name for path in tmp_path.rglob("*") if path.name.startswith(".")] == []
    assert found(out).keys() == set(FILES)


def test_of_many_that_begin_at_once_one_writes(tmp_path):
    outcomes = []
    begin, hold = threading.Barrier(8), threading.Barrier(8)

    def run(number):
        begin.wait()
        try:
            with staged(tmp_path / "out", FILES) as folder:
                hold.wait()
                (folder / "summary.json").write_text(str(number))
            outcomes.append(number)
        except OutputError:
            hold.wait()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = outcomes
    assert found(tmp_path / "out") == {"summary.json": str(winner)}


@pytest.mark.parametrize("way", ["x" * 300, "a/" + "x" * 300 + "/b"])
def test_a_name_that_cannot_be_is_found_before(tmp_path, way):
    with pytest.raises(OutputError, match="File name too long; expected a folder"), staged(tmp_path / way, FILES):
        pytest.fail("the block has run")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("way", [b"out\xff", b"\xff/out"])
def test_a_name_that_is_no_utf_8_is_found_before(tmp_path, way):
    """Parquet files can have no such path."""
    out = tmp_path / os.fsdecode(way)
    with pytest.raises(OutputError, match="its path is no UTF-8; expected a folder"), staged(out, FILES):
        pytest.fail("the block has run")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"a.parquet": "mine"}, "a.parquet"),
        ({"b.parquet": "mine", "notes": "mine"}, "b.parquet"),
        ({"summary.json": "mine"}, "summary.json"),
        ({"summary.json": '{"total": 1}', "a.parquet": "mine"}, "summary.json"),
        ({"summary.json": '["digest"]'}, "summary.json"),
    ],
)
def test_files_of_the_user_are_kept_and_found_before(tmp_path, files, named):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with (
        pytest.raises(OutputError, match=f"{named} in it was not written by Nadi.*expected another folder"),
        staged(tmp_path, FILES, key="digest"),
    ):
        pytest.fail("the block has run")
    assert found(tmp_path) == files


def test_files_of_an_earlier_run_are_replaced_or_removed(tmp_path):
    for name in FILES:
        (tmp_path / name).write_text('{"digest": "0"}')
    with staged(tmp_path, FILES, key="digest") as folder:
        (folder / "summary.json").write_text("new")
        (tmp_path / "b.parquet").unlink()
    assert found(tmp_path) == {"summary.json": "new"}


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        write(tmp_path / "a" / "out", text=b"1")
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputError, match="No space left"), staged(tmp_path / "out", FILES):
        raise OSError(28, "No space left on device")
    assert [*tmp_path.rglob("*")] == [tmp_path / "out"]


def test_a_parent_that_another_run_creates_meanwhile_is_used(tmp_path, monkeypatch):
    """Tasks of an array write to folders of one parent, which both find missing."""
    make = Path.mkdir

    def late(folder, *args, **keys):
        if folder.name == "results" and not folder.exists():
            make(folder)  # by the other run
        make(folder, *args, **keys)

    monkeypatch.setattr(Path, "mkdir", late)
    with staged(tmp_path / "results" / "one", ("summary.json",)) as folder:
        (folder / "summary.json").write_text("{}")
    assert (tmp_path / "results" / "one" / "summary.json").read_text() == "{}"
