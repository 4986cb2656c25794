"""Files of the wrong kind are named for what they are, by each command that is given one."""

import gzip
import io
import json
import os
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nadi import et, topologies
from nadi.cli.main import main
from nadi.inputs import kind_of, kind_of_bytes

KINETO = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": [{"ph": "X", "name": "a", "ts": 1}]}
HOST = {"schema": "1.1.1-chakra.0.0.4", "pid": 7, "time": "2026", "start_ts": 1, "nodes": []}
LAYERS = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 1\n1\nnorm -1 0 NONE 0 1 NONE 0 1 NONE 0 9\n"
SIMAI = "3 1 0 1 2 H100\n2\n0 2 100Gbps 1us 0\n1 2 100Gbps 1us 0\n"
FABRIC = 'npus = 2\n[[switches]]\n[[links]]\nrate = "1Gbps"\ndelay = "1us"\ncables = [[0, 2], [1, 2]]\n'
RUN = '# ours\n[workload]\ntraces = "t"\n[topology]\nspec = "ring:npus=4"\n'


def tar():
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo("a.et")
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"abc"))
    return made.getvalue()


def parquet():
    made = io.BytesIO()
    pq.write_table(pa.table({"a": [1, 2]}), made)
    return made.getvalue()


def npy():
    made = io.BytesIO()
    np.save(made, np.zeros((2, 2), np.int64))
    return made.getvalue()


# what is in the file, what it is called
OTHERS = {
    "json": (b'{"a": 1}', "is JSON"),
    "list": (b'\n[{"a": 1}]', "is JSON"),
    "kineto": (json.dumps(KINETO, indent=2).encode(), "is a Kineto trace (JSON with traceEvents)"),
    "host trace": (json.dumps(HOST).encode(), 'is a PyTorch host execution trace (JSON with "schema" and "nodes")'),
    "gzipped kineto": (gzip.compress(json.dumps(KINETO).encode()), "is gzipped: a Kineto trace"),
    "gzipped text": (gzip.compress(b"hello\nworld\n"), "is gzipped: text"),
    "astra-sim network": (b"topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50.0 ]\n", "a network of ASTRA-sim"),
    "layers": (LAYERS.encode(), "is a workload of layers (text of SimAI or ASTRA-sim 1.0)"),
    "tar": (tar(), "is a tar archive"),
    "gzipped tar": (gzip.compress(tar()), "is gzipped: a tar archive"),
    "parquet": (parquet(), "is a Parquet table"),
    "npy": (npy(), "is a NumPy array (.npy)"),
    "msccl": (b'<algo name="a" proto="Simple"></algo>', "is an algorithm (MSCCL's XML)"),
    "folder": (None, "a folder"),
}
COMMANDS = {
    "run": "a run file",
    "trace show": "a Chakra trace",
    "topology show": "a fabric",
    "topology build -o {out}": "a fabric",
    "collective all-reduce --sizes 8 -q -t": "a fabric",
}


@pytest.fixture
def refuse(capsys, tmp_path):
    def refused(command, path):
        capsys.readouterr()
        code = main([*command.format(out=tmp_path / "new.toml").split(), str(path)])
        out, err = capsys.readouterr()
        assert (code, out) == (2, ""), err
        assert err.startswith("nadi: error: ")
        assert err.count("\n") == 1
        assert not (tmp_path / "new.toml").exists()
        return err

    return refused


@pytest.fixture
def write(tmp_path):
    def written(content, name="given"):
        path = tmp_path / name
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
        return path

    return written


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", OTHERS)
def test_named_by_every_command(refuse, write, case, command):
    content, called = OTHERS[case]
    line = refuse(command, write(content))
    assert called in line
    assert "expected" in line


@pytest.mark.parametrize("case", OTHERS)
def test_what_was_read_before_changes_no_complaint(refuse, write, monkeypatch, case):
    content, called = OTHERS[case]
    monkeypatch.setattr(et.decoder, "MAX_SMALL_FILES_BYTES", -1)  # as if hundreds of traces had been read
    assert called in refuse("trace show", write(content))


@pytest.mark.parametrize("command", ["run", "topology show", "collective all-reduce --sizes 8 -q -t"])
def test_a_trace_given_as_something_else(refuse, tmp_path, command):
    path = tmp_path / "t.0.et"
    et.write_trace(path, et.metadata(), [et.comp_node(1, "a")])
    assert "is a Chakra trace, expected" in refuse(command, path)
    zipped = tmp_path / "t.0.et.gz"
    et.write_trace(zipped, et.metadata(), [et.comp_node(1, "a")])
    assert "is a gzipped Chakra trace, expected" in refuse(command, zipped)


@pytest.mark.parametrize(("key", "value"), [("traces", "given"), ("groups", "given")])
@pytest.mark.parametrize("case", ["kineto", "astra-sim network", "gzipped tar", "parquet", "folder"])
def test_files_that_a_run_file_names(refuse, write, case, key, value):
    content, called = OTHERS[case]
    write(content)
    traces = f'traces = "{"t" if key == "groups" else value}"\n'
    groups = f'groups = "{value}"\n' if key == "groups" else ""
    run = write(f'[workload]\n{traces}{groups}[topology]\nspec = "ring:npus=4"\n'.encode(), "run.toml")
    et.write_trace(run.with_name("t.0.et"), et.metadata(), [et.comp_node(1, "a")])
    line = refuse("run -q", run)
    assert called in line
    assert "given" in line


def test_a_fabric_needs_no_ending_of_its_own(write):
    assert topologies.build(str(write(FABRIC.encode()))).npus == 2
    assert topologies.build(str(write(SIMAI.encode(), "simai"))).npus == 2


def test_what_nobody_knows_has_no_name():
    assert kind_of_bytes(b"\x00\xff\xfe\x80") is None
    assert kind_of_bytes(b"\x1f\x8b\xff\xff") is None


def test_a_pipe_that_nobody_writes_to_does_not_hold_a_command_up(refuse, tmp_path):
    os.mkfifo(tmp_path / "given")
    for command in COMMANDS:
        assert "a FIFO" in refuse(command, tmp_path / "given")


def test_real_files_of_other_projects(shared_data):
    found = {path: kind_of(path) for path in shared_data.rglob("*") if path.is_file()}
    assert {kind.key for path, kind in found.items() if path.suffix == ".et"} == {"chakra"}
    named = {str(path.relative_to(shared_data)): kind.key for path, kind in found.items() if path.suffix != ".et"}
    assert named["pytorch/linear_kineto.json.gz"] == "gzip:kineto"
    assert named["pytorch/linear_et.json.gz"] == named["pytorch/resnet_2gpu_et_1.1.0.json.gz"] == "gzip:host-trace"
    assert named["chakra/gpt_fsdp8/workload.json"] == "groups"
    assert named["simai/Spectrum-X_128g_8gps_400Gbps_H100"] == "simai-topology"
    assert {kind for name, kind in named.items() if "text_workloads" in name} == {"layers"}
    assert {kind for name, kind in named.items() if name.endswith(".yml")} == {"astra-sim-network"}
