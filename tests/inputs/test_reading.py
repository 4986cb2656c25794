"""Files are read within bounds, and values with units are parsed; what is wrong is one line."""

import ast
import gzip
import os
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import et, inputs, topologies
from nadi.cli.main import main
from nadi.et.framing import frame, iter_messages
from nadi.inputs.errors import InputError, NadiError
from nadi.inputs.files import MAX_KEY_PARTS, MAX_LEVELS
from nadi.inputs.units import format_bytes, format_rate, format_time, parse_bytes, parse_rate, parse_time
from tests.rules.sources import product

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
        monkeypatch.setattr(inputs.files, "_BLOCK_BYTES", size)
        assert list(iter_messages(path)) == whole
    path.write_bytes(gzip.compress(data[:-3]))
    with pytest.raises(et.TraceError, match=rf"byte {whole[-1][0]}: message of 9 bytes, expected at most the 6 that"):
        list(iter_messages(path))


def test_gzip_bombs(refuse, tmp_path, monkeypatch):
    """Zeros are seen for what they are in the first block; what looks like a trace is read up to a bound."""
    zeros = tmp_path / "t.0.et"
    zeros.write_bytes(gzip.compress(bytes(30 << 20), 1))
    inflated = []
    readinto = inputs.files._Inflated.readinto

    def counted(self, room):
        inflated.append(readinto(self, room))
        return inflated[-1]

    monkeypatch.setattr(inputs.files._Inflated, "readinto", counted)
    assert "node type 0" in refuse("trace", "show", zeros)
    assert 0 < sum(inflated) < 5 << 20  # of 30 MiB
    bomb = tmp_path / "t.1.et"
    one = frame(et.comp_node(1, "a").SerializeToString())
    bomb.write_bytes(gzip.compress(frame(et.metadata().SerializeToString()) + one * 10_000))
    monkeypatch.setattr(inputs.files, "MIN_INFLATED_LIMIT_BYTES", 50_000)
    monkeypatch.setattr(inputs.files, "_BLOCK_BYTES", 1 << 10)
    with pytest.raises(et.TraceError, match=r"t\.1\.et: inflates to more than 200 times its size; if that is intended"):
        list(iter_messages(bomb))
    monkeypatch.setattr(inputs.files, "LARGEST_INFLATED_BYTES", 50_000)
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


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("400Gbps", 400 * 10**9),
        ("400 Gb/s", 400 * 10**9),
        ("50GB/s", 400 * 10**9),
        ("50GiB/s", 50 * 2**30 * 8),
        ("2.5Gbps", 2_500_000_000),
        ("1.6Tbps", 1_600_000_000_000),
        ("100Mbit/s", 10**8),
        ("9600bps", 9600),
        ("1e3kbps", 10**6),
    ],
)
def test_rates(text, rate_bps):
    assert parse_rate(text) == rate_bps


@pytest.mark.parametrize(
    ("text", "time_ps"),
    [
        ("1us", 10**6),
        ("1µs", 10**6),
        ("500ns", 500_000),
        ("0.0005ms", 500_000),
        ("936.25ns", 936_250),
        ("0", 0),
        (0, 0),
        ("0ns", 0),
        ("3ps", 3),
        ("2 s", 2 * 10**12),
        (".5us", 500_000),
    ],
)
def test_times(text, time_ps):
    assert parse_time(text) == time_ps


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("64KiB", 65536), ("1MB", 10**6), ("1.5GiB", 3 * 2**29), ("512B", 512), ("512", 512), (512, 512), ("0", 0)],
)
def test_sizes(text, size_bytes):
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("parse", "value", "text"),
    [
        (parse_rate, "fast", "'fast' is not a rate; expected a number and a unit, as 400Gbps or 50GB/s"),
        (parse_rate, 400, "400 is not a rate; expected a number and a unit, as 400Gbps or 50GB/s"),
        (parse_rate, "400", "'400' is not a rate; expected a number and a unit, as 400Gbps or 50GB/s"),
        (parse_rate, "-1Gbps", "'-1Gbps' is not a rate; expected a number and a unit, as 400Gbps or 50GB/s"),
        (parse_rate, "1iB/s", "'1iB/s' is not a rate; expected a number and a unit, as 400Gbps or 50GB/s"),
        (parse_rate, "0Gbps", "rate '0Gbps' is zero; expected more than 0"),
        (parse_rate, "0.1bps", "'0.1bps' is no whole number of units of 1 bit per second"),
        (parse_rate, "99999PB/s", "'99999PB/s' is too large; expected less than 2^63 times 1 bit per second"),
        (parse_time, "1", "'1' is not a time; expected a number >= 0 and a unit, as 500ns or 1us"),
        (parse_time, "-1us", "'-1us' is not a time; expected a number >= 0 and a unit, as 500ns or 1us"),
        (parse_time, False, "False is not a time; expected a number >= 0 and a unit, as 500ns or 1us"),
        (parse_time, [0], "[0] is not a time; expected a number >= 0 and a unit, as 500ns or 1us"),
        (parse_time, "0.3ps", "'0.3ps' is no whole number of units of 1 ps"),
        (parse_time, "1e20s", "'1e20s' is too large; expected less than 2^63 times 1 ps"),
        (parse_bytes, "64kb", "'64kb' is not a size; expected a number >= 0 and a unit, as 64KiB or 1MB"),
        (parse_bytes, -1, "-1 is not a size; expected a number >= 0 and a unit, as 64KiB or 1MB"),
        (parse_bytes, "1.5B", "'1.5B' is no whole number of units of 1 byte"),
    ],
)
def test_what_is_wrong_is_said(parse, value, text):
    with pytest.raises(InputError) as error:
        parse(value)
    assert str(error.value) == text
    assert error.value.exit_code == 2


@given(st.integers(1, 2**63 - 1))
def test_formatted_rates_read_back(rate_bps):
    assert parse_rate(format_rate(rate_bps)) == rate_bps


@given(st.integers(0, 2**63 - 1))
def test_formatted_times_and_sizes_read_back(value):
    assert parse_time(format_time(value)) == value
    assert parse_bytes(format_bytes(value)) == value


def test_formats_are_short():
    assert format_rate(400 * 10**9) == "400Gbps"
    assert format_rate(50 * 2**30 * 8) == "429.4967296Gbps"
    assert format_time(1_500_000) == "1.5us"
    assert format_time(0) == "0ps"
    assert format_bytes(65536) == "64KiB"
    assert format_bytes(1_500_000) == "1.5MB"
    assert format_bytes(0) == "0B"


ROOT = Path(__file__).parents[2]
LONG = ".".join(["a"] * 200_000)


@pytest.mark.parametrize(
    "text",
    [
        LONG + " = 1\n",
        f"[{LONG}]\n",
        f"[[ {LONG} ]]\n",
        f"x = {{ {LONG} = 1 }}\n",
        '"a".' * 100_000 + "a = 1\n",
        "'a' . " * 100_000 + "a = 1\n",
        '"a,=#".' * 50_000 + "a = 1\n",
        '""."\\"".' * 50_000 + "a = 1\n",
        "s = '''\n#'''\n" + LONG + " = 1\n",
        's = """\\"""" # "\n' + LONG + " = 1\n",
    ],
)
def test_a_key_of_many_parts_is_refused_at_once(text):
    began = time.process_time()
    with pytest.raises(ValueError, match=f"a dotted key of more than {MAX_KEY_PARTS} parts"):
        inputs.parse_toml(text)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * MAX_KEY_PARTS) + " = 1\n",
        f"s = '{LONG}'\n",
        f's = "{LONG}"\n',
        f's = """\n{LONG} \\"" #\n"""\n',
        f"s = '''\n{LONG}'' '''\n",
        f"# {LONG}\na = 1.5 # it's {LONG}\n",
        f"a = [{', '.join(['1.5'] * 10_000)}]\n",
    ],
)
def test_dots_elsewhere_are_no_keys(text):
    assert inputs.parse_toml(text) == tomllib.loads(text)


def test_levels_are_bounded():
    key = ".".join(["a"] * (MAX_KEY_PARTS - 1))
    with pytest.raises(ValueError, match=f"tables within more than {MAX_LEVELS} others"):
        inputs.parse_toml("x = " + f"{{ {key} = " * 10 + "1" + " }" * 10 + "\n")
    assert inputs.parse_toml("x = { a.b = [ { c = 1 } ] }\n") == {"x": {"a": {"b": [{"c": 1}]}}}


class OwnError(ValueError):
    pass


@pytest.mark.parametrize(
    ("problem", "also", "said"),
    [
        (FileNotFoundError(2, "No such file or directory"), (), "a.txt: No such file or directory; expected a poem"),
        (OSError("lost"), (), "a.txt: lost; expected a poem"),
        (ValueError("wrong"), (ValueError,), "a.txt: wrong; expected a poem"),
        (OwnError("b.txt: told already"), (ValueError,), "b.txt: told already"),
    ],
)
def test_problems_with_files_become_errors_of_one_line(problem, also, said):
    with pytest.raises(OwnError) as error, inputs.refusing("a.txt", "a poem", OwnError, *also):
        raise problem
    assert str(error.value) == said


def test_other_errors_pass():
    with pytest.raises(ValueError, match=r"^wrong$"), inputs.refusing("a.txt", "a poem", OwnError):
        raise ValueError("wrong")


OWN_CODES = ("inputs/errors.py", "compiling/", "pdes/", "nadi/launching/")
"""Where classes set exit codes: `compiling` and `pdes` import no error, and launching passes on those of others."""


def test_an_error_says_place_value_and_what_was_expected():
    error = topologies.TopologyError.at("net.toml: links.3", "rate 0", "more than 0")
    assert str(error) == "net.toml: links.3: rate 0; expected more than 0"
    assert (type(error), error.exit_code) == (topologies.TopologyError, 2)


@pytest.mark.parametrize("kind", [et.TraceError, topologies.TopologyError])
def test_wrong_input_is_a_value_error(kind):
    assert issubclass(kind, InputError)
    assert issubclass(InputError, ValueError)
    assert NadiError.exit_code == 1


def test_exit_codes_are_set_by_the_base_classes():
    own = [
        f"{source.path}:{node.lineno}"
        for source in product()
        if not source.path.startswith(OWN_CODES)
        for parent in source.nodes
        if isinstance(parent, ast.ClassDef)
        for node in parent.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "exit_code"
    ]
    assert own == []
