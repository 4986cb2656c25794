"""Files are read whole, bounded, and without waiting; what is wrong is one line and exit code 2."""

import gzip
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from nadi import et, inputs
from nadi.cli.main import main
from nadi.et.framing import frame, iter_messages
from nadi.inputs import files

RING = '[topology]\nspec = "ring:npus=4"\n'


@pytest.fixture
def refuse(capsys):
    def refused(*arguments):
        capsys.readouterr()
        code = main([*map(str, arguments)])
        out, err = capsys.readouterr()
        assert (code, out, err.count("\n")) == (2, "", 1), err
        return err

    return refused


def trace_of(path, nodes=3):
    et.write_trace(path, et.metadata(), [et.comp_node(i, "x" * 50) for i in range(nodes)])
    return path


def test_a_gzipped_trace_is_read_in_blocks_of_any_size(tmp_path, monkeypatch):
    """Of 7 bytes, so that lengths and messages are cut everywhere; many members, too."""
    messages = [b"\x0a\x03abc", b"", b"a" * 300, b"b" * 20, b"", b"c" * 9]
    data = b"".join(map(frame, messages))
    path = tmp_path / "t.et.gz"
    path.write_bytes(b"".join(gzip.compress(data[i : i + 40]) for i in range(0, len(data), 40)))
    whole = list(iter_messages(path))
    assert [message for _, message in whole] == messages
    for size in (1, 2, 3, 7, 100):
        monkeypatch.setattr(files, "_BLOCK_BYTES", size)
        assert list(iter_messages(path)) == whole
    path.write_bytes(gzip.compress(data[:-3]))
    with pytest.raises(et.TraceError, match=rf"byte {whole[-1][0]}: message of 9 bytes, expected at most the 6 that"):
        list(iter_messages(path))


def test_gzip_bombs(refuse, tmp_path, monkeypatch):
    """Zeros are seen for what they are in the first block; what looks like a trace is read up to a bound."""
    zeros = tmp_path / "t.0.et"
    zeros.write_bytes(gzip.compress(bytes(30 << 20), 1))
    inflated = []
    readinto = files._Inflated.readinto

    def counted(self, room):
        inflated.append(readinto(self, room))
        return inflated[-1]

    monkeypatch.setattr(files._Inflated, "readinto", counted)
    assert "node type 0" in refuse("trace", "show", zeros)
    assert 0 < sum(inflated) < 5 << 20  # of 30 MiB
    bomb = tmp_path / "t.1.et"
    one = frame(et.comp_node(1, "a").SerializeToString())
    bomb.write_bytes(gzip.compress(frame(et.metadata().SerializeToString()) + one * 10_000))
    monkeypatch.setattr(files, "MIN_INFLATED_LIMIT_BYTES", 50_000)
    monkeypatch.setattr(files, "_BLOCK_BYTES", 1 << 10)
    with pytest.raises(et.TraceError, match=r"t\.1\.et: inflates to more than 200 times its size; if that is intended"):
        list(iter_messages(bomb))
    monkeypatch.setattr(files, "LARGEST_INFLATED_BYTES", 50_000)
    with pytest.raises(
        et.TraceError, match=r"t\.1\.et: inflates to more than 50000 bytes; if that is intended, gunzip"
    ):
        list(iter_messages(bomb))


def test_sparse_files_are_not_taken_into_memory(refuse, tmp_path):
    for name in ("run.toml", "net.toml", "t.0.et"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 42)
    assert "bytes, more than 1 GiB" in refuse("run", tmp_path / "run.toml")
    assert "bytes, more than 1 GiB" in refuse("topology", "show", tmp_path / "net.toml")
    assert "bytes, more than 64 GiB" in refuse("trace", "show", tmp_path / "t.0.et")


def test_a_header_that_claims_a_terabyte(refuse, tmp_path):
    path = tmp_path / "m.npy"
    np.save(path, np.zeros((4, 4), np.int64))
    data = path.read_bytes()
    assert data.count(b"(4, 4), }        ") == 1
    path.write_bytes(data.replace(b"(4, 4), }        ", b"(400000, 400000),"[:8] + b"400000,400000),}"[:0] + b" }" * 0))
    claims = data.replace(b"(4, 4), }            ", b"(400000, 400000), }  ")
    assert len(claims) == len(data)
    path.write_bytes(claims)
    line = refuse("collective", "all-to-all-v", "-t", "ring:npus=4", "-q", "--matrix", path)
    assert "the header declares 1,280,000,000,000 bytes of numbers, but 128 follow" in line
    of_version_9 = b"\x93NUMPY\x09\x00" + data[8:]
    for wrong in (data[:9], data[:40], data[:-1], of_version_9, data.replace(b"'descr'", b"'desc\xff'")):
        path.write_bytes(wrong)
        refuse("collective", "all-to-all-v", "-t", "ring:npus=4", "-q", "--matrix", path)


@pytest.mark.parametrize("text", ["seed = " + "9" * 5000, "seed = " + "[" * 100_000])
def test_numbers_of_5000_digits_and_lists_in_lists(refuse, tmp_path, text):
    run = tmp_path / "run.toml"
    run.write_text(f'[workload]\ntraces = "t"\n{RING}[engine]\n{text}\n')
    assert "no TOML: " in refuse("run", run)
    net = tmp_path / "net.toml"
    net.write_text(f"npus = 4\n{text}\n")
    assert "no TOML: " in refuse("topology", "show", net)
    trace_of(tmp_path / "t.0.et")
    run.write_text(f'[workload]\ntraces = "t"\n{RING}')
    refuse("run", run, "--set", f"engine.{text}", "-q")
    groups = tmp_path / "groups.json"
    groups.write_text('{"1": [' + text.removeprefix("seed = "))
    run.write_text(f'[workload]\ntraces = "t"\ngroups = "groups.json"\n{RING}')
    assert "groups.json: " in refuse("run", run, "-q")


def test_a_nul_in_a_path(refuse, tmp_path):
    run = tmp_path / "run.toml"
    et.write_trace(tmp_path / "t.0.et", et.metadata(), [et.coll_node(1, "a", et.CollectiveCommType.ALL_REDUCE, 64)])
    for text in (
        f'[workload]\ntraces = "a\\u0000b"\n{RING}',
        f'[workload]\ntraces = "t.0.et"\ngroups = "a\\u0000b"\n{RING}',
        '[workload]\ntraces = "t.0.et"\n[topology]\nfile = "a\\u0000b"\n',
        '[workload]\ntraces = "t.0.et"\n[topology]\nspec = "a\\u0000b"\n',
        '[workload]\ntraces = "t.0.et"\n[topology]\nname = "file"\nparams = {path = "a\\u0000b"}\n',
        f'[workload]\ntraces = "t.0.et"\n{RING}[system]\ncollectives = {{all-reduce = "custom:file=a\\u0000b.xml"}}\n',
        f'[workload]\ntraces = "t.0.et"\n{RING}[system]\ncollectives = {{all-reduce = "custom:file=a\\u0000b"}}\n',
        f'[workload]\ntraces = "t.0.et"\n{RING}[output]\ndir = "a\\u0000b"\n',
        f'[workload]\ntraces = "t.0.et"\n{RING}[engine]\nworkers = 2\nweights = "a\\u0000b"\n',
    ):
        run.write_text(text)
        refuse("run", run, "-q")


def test_what_the_shell_pipes_in_is_read(tmp_path):
    read, write = os.pipe()
    threading.Thread(target=lambda: (os.write(write, b"x" * 100_000), os.close(write))).start()
    assert len(inputs.read_bytes(f"/dev/fd/{read}")) == 100_000
    os.close(read)
    path = trace_of(tmp_path / "t.0.et")
    command = [sys.executable, "-m", "nadi", "trace", "show", "/dev/stdin", "--json"]
    assert b'"nodes": 3' in subprocess.run(command, input=path.read_bytes(), capture_output=True, check=True).stdout


@pytest.mark.parametrize("other", ["/dev/zero", "/dev/null"])
def test_devices_are_no_files(refuse, other):
    for command in (["run"], ["trace", "show"], ["topology", "show"]):
        assert "a device" in refuse(*command, other)


@pytest.mark.parametrize("option", ["/dev/null", ".", "FIFO"])
def test_a_file_is_not_put_in_the_place_of_a_device(refuse, tmp_path, monkeypatch, option):
    """As root it would be: /dev/null would be gone."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("FIFO")
    before = Path(option).stat()
    line = refuse("topology", "build", "ring:npus=4", "-o", option)
    assert "expected the name of a file" in line
    with pytest.raises(et.TraceError, match="expected a place to write a trace to"):
        et.write_trace(option, et.metadata(), [])
    assert Path(option).stat().st_ino == before.st_ino


def test_a_word_without_end_is_shortened(refuse):
    line = refuse("topology", "show", "ring:npus=4,rate=" + "9" * 5000 + "Xbps")
    assert "99...99" in line
    assert len(line) < 500
