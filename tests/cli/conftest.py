"""Running commands, and small runs for them."""

import json
from typing import NamedTuple

import pytest

from nadi import et
from nadi.cli.main import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self):
        """Standard output, which must be one JSON document."""
        return json.loads(self.out)


class Commands:
    """Commands of Nadi, run in this process."""

    def __init__(self, capsys):
        self.capsys = capsys

    def __call__(self, *arguments):
        """Run a command, whose words may be paths and numbers."""
        self.capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Outcome(code, *self.capsys.readouterr())

    def ok(self, *arguments):
        """Run a command that must end with 0."""
        outcome = self(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome

    def refuse(self, *arguments):
        """Run a command that must end with 2 and one line, and print nothing else."""
        outcome = self(*arguments)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1), outcome
        assert outcome.err.startswith("nadi: error: ")
        return outcome


@pytest.fixture
def nadi(capsys, monkeypatch):
    for name in ("NADI_DEBUG", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return Commands(capsys)


@pytest.fixture
def write_run(tmp_path):
    """Write traces, one list of nodes for each NPU, and a run file with further text; gives the run file."""

    def write(nodes_of_npu, text="", topology='spec = "ring:npus=4,rate=100Gbps,delay=1us"'):
        for npu, nodes in enumerate(nodes_of_npu):
            et.write_trace(tmp_path / f"trace.{npu}.et", et.metadata(), nodes)
        run = tmp_path / "run.toml"
        run.write_text(f'[workload]\ntraces = "trace"\n[topology]\n{topology}\n{text}')
        return run

    return write


@pytest.fixture
def write_step(tmp_path):
    """Write traces of four ranks, named step: computation, then an all-reduce of so many bytes beside messages."""

    def write(all_reduce_bytes):
        for rank in range(4):
            nodes = [
                et.comp_node(0, "forward", duration_micros=10),
                et.coll_node(1, "dp:grads", et.CollectiveCommType.ALL_REDUCE, all_reduce_bytes, deps=[0]),
                et.send_node(2, "pp:on", rank, (rank + 1) % 4, 1 << 16, 3, deps=[0]),
                et.recv_node(3, "pp:from", (rank - 1) % 4, rank, 1 << 16, 3, deps=[0]),
            ]
            et.write_trace(tmp_path / f"step.{rank}.et", et.metadata(), nodes)

    return write


@pytest.fixture
def step():
    """A training step of one NPU: forward, backward beside an all-reduce of 64 KiB, a second one after it."""
    grads = et.CollectiveCommType.ALL_REDUCE
    return [
        et.comp_node(1, "forward", duration_micros=10),
        et.coll_node(2, "grads 1", grads, 1 << 16, deps=[1]),
        et.comp_node(3, "backward", duration_micros=5, deps=[1]),
        et.coll_node(4, "grads 2", grads, 1 << 16, deps=[2, 3]),
    ]
