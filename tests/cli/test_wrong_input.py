"""Wrong, damaged and hostile input: one line and exit code 2, at once, and nothing is written."""

import json
import os
import shutil
import time
import typing
from types import UnionType

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

from nadi import configuration as bounds, et
from nadi.cli.main import main
from nadi.configuration.effects import CONDITIONS
from nadi.configuration.run_config import RunConfig
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.inputs import limits as quantities
from nadi.pdes import workers
from nadi.pdes.construction.fabric import MAX_RTO_PS
from nadi.pdes.core import packet, state as engine
from nadi.pdes.nic.control import ECHO_MASK
from nadi.pdes.nic.port import MAX_BACKOFF
from tests.nonempty import nonempty

ALL_REDUCE = et.CollectiveCommType.ALL_REDUCE


def reduce(size=1024, **more):
    return [et.coll_node(1, "grads", ALL_REDUCE, size, **more)]


def listing(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


def refused(nadi, folder, *arguments):
    """Run, and check that the input is refused as it should be; gives the line."""
    before = listing(folder)
    outcome = nadi.refuse(*arguments)
    assert listing(folder) == before
    return outcome.err


@pytest.mark.parametrize(("keep", "word"), [(0, "empty"), (-3, "expected at most"), (1, "byte 0")])
def test_truncated_traces(nadi, write_run, tmp_path, keep, word):
    run = write_run([reduce()] * 4)
    trace = tmp_path / "trace.2.et"
    trace.write_bytes(trace.read_bytes()[:keep])
    line = refused(nadi, tmp_path, "run", run, "--out", tmp_path / "out", "-q")
    assert "trace.2.et" in line
    assert word in line


def test_corrupt_length(nadi, write_run, tmp_path):
    run = write_run([reduce()] * 4)
    trace = tmp_path / "trace.1.et"
    trace.write_bytes(trace.read_bytes() + b"\xff" * 12)
    assert "corrupt message length" in refused(nadi, tmp_path, "run", run, "--out", tmp_path / "out", "-q")


@pytest.mark.parametrize("where", ["file", "file/deeper", "/dev/null/out", "/proc/nadi-out"])
def test_unwritable_output_is_found_before_simulating(nadi, write_run, step, tmp_path, monkeypatch, where):
    (tmp_path / "file").touch()
    monkeypatch.setattr("nadi.simulation.run.run_program", None)
    out = where if where.startswith("/") else tmp_path / where
    line = refused(nadi, tmp_path, "run", write_run([step] * 4), "--out", out, "-q")
    assert str(out) in line


LAYERS = "DATA\n1\nfc -1 1000 NONE 0 1000 NONE 0 1000 ALLREDUCE 1048576 100\n"
RUN = '[workload]\ntraces = "t"\n[topology]\nspec = "ring:npus=4"\n'
LONG_KEY = ".".join(["a"] * 200_000)
MOST_S = 3
"""CPU seconds of a command, most of which it needs to import what it uses."""

# what is in the file, the command with FILE and OUT in it, what it says
CASES = {
    "comments of GOAL": ("/**/" * 28 + "x\n", "trace convert FILE -o OUT", "is text, expected one of"),
    "comments of GOAL, another command": ("/**/" * 28 + "x\n", "trace show FILE", "is text, expected a Chakra trace"),
    "comments of GOAL without an end": (
        "num_ranks 1\nrank 0 {\n" + "/*" * 200_000,
        "trace convert FILE -o OUT",
        "rank 0: ends without a bracket",
    ),
    "headings of Markdown": ("# a\n" * 12_000, "trace convert FILE -o OUT", "is text, expected one of"),
    "lines of TOML": ("#a\r\n" * 12_000 + "x", "run FILE", "no TOML"),
    "numbers of SimAI": ("1 2 3 4\n" + "1" * 60_000 + "x", "trace show FILE", "expected a Chakra trace"),
    "a long key": (f"{LONG_KEY} = 1\n", "run FILE", "a dotted key of more than 64 parts"),
    "a long key of a fabric": (f"[{LONG_KEY}]\n", "topology show FILE", "a dotted key of more than 64 parts"),
    "a long key on the command line": (RUN, f"run FILE --set {LONG_KEY[:100_000]}a=1", "expected section.key=value"),
    "nested JSON": ("[" * 100_000, "trace convert FILE --from json -o OUT", "character 1"),
    "digits of a rate": ("", f"topology show ring:npus=4,rate={'9' * 5000}Gbps", "rate"),
    "digits of a size": ("", f"collective all-reduce -t ring:npus=4 --sizes {'9' * 5000}", "is not a size"),
    "digits of an entry": (RUN, f"run FILE --set faults.{'9' * 5000}.npu=3", "as a number of a list; expected 0"),
    "many NPUs": (
        LAYERS,
        "trace convert FILE --from astra-sim:npus=400000 -o OUT",
        "400,000 files would take about 1.6 GB, expected at most 131,072 files",
    ),
    "many ranks": (
        "num_ranks 400000\nrank 0 {\nl1: calc 5\n}\n",
        "trace convert FILE -o OUT",
        "400,000 files would take about 1.6 GB, expected at most 131,072 files",
    ),
    "many passes": (
        LAYERS,
        "trace convert FILE --from astra-sim:npus=4,passes=99999999 -o OUT",
        "99,999,999 passes over 1 layers, expected at most 131,072 layers in all",
    ),
    "many GPUs": (
        '<algo coll="allreduce" ngpus="16000000" nchunksperloop="1"/>',
        "collective all-reduce -t ring:npus=4 --sizes 1MiB --algorithm custom:file=FILE",
        "0 elements <gpu>, expected ngpus 16000000",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_small_file_is_refused_at_once(nadi, tmp_path, case):
    content, command, says = CASES[case]
    file, out = tmp_path / "file.toml", tmp_path / "out"
    file.write_text(content, encoding="utf-8", newline="")
    words = [word.replace("FILE", str(file)).replace("OUT", str(out)) for word in command.split()]
    began = time.process_time()
    outcome = nadi(*words)
    assert time.process_time() - began < MOST_S
    assert outcome.code == 2
    assert says in outcome.err
    assert outcome.err.count("\n") == 1
    assert not out.exists()


def test_files_that_the_disk_has_no_room_for_are_refused(nadi, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text(LAYERS, encoding="utf-8")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1_000_000}))
    outcome = nadi.refuse("trace", "convert", file, "--from", "astra-sim:npus=1000", "-o", tmp_path / "out")
    assert "1,000 files would take about 0.0 GB, expected at most the 0.0 GB that the disk has free" in outcome.err


VALUES = ["[]", '[["a"], [1]]', '["a"]', "{ a = 1 }", "true", "7", "-1", "0.5", "9" * 18, "nan", '"?"', '""']
KEYS = [(section, key) for section, keys in CONDITIONS.items() if section != "jobs" for key in keys]
KEYS += [("jobs", key) for key in CONDITIONS["jobs"]]
KEYS += [("faults", key) for key in ("at", "until", "link", "switch", "npu", "state", "rate", "slowdown", "error_rate")]
HEADS = {"jobs": "[[jobs]]", "faults": "[[faults]]", "traffic": "[workload.traffic]", "serving": "[serving]"}
TINY = '[topology]\nspec = "ring:npus=2"\n[workload]\nmodel = "gpt3-125m"\nplan = "tp2"\n'


@pytest.mark.parametrize("value", VALUES)
def test_one_line(tmp_path, capsys, value, monkeypatch):
    monkeypatch.setattr("nadi.cli.commands.run.run_and_report", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    wrong = []
    for section, key in nonempty(KEYS):
        text = f"{HEADS.get(section, f'[{section}]')}\n{key} = {value}\n"
        (tmp_path / "run.toml").write_text(text if section in {"topology", "workload"} else TINY + text)
        code = main(["run", "run.toml", "--quiet"])
        lines = capsys.readouterr().err.splitlines()
        if code not in (0, 2) or (code == 2 and (len(lines) != 1 or "defect" in lines[0])):
            wrong.append((section, key, code, lines))
    assert wrong == []


HUGE = ("9" * 30, "1" + "0" * 300, str(2**63), str(2**62 + 1), '"99999999PB"', '"9e9s"', '"1e30ps"', '"9e90GB/s"')
SMALL = ("-1", '"-1ns"', '"1bps"', '"0.1ps"', "nan", "-inf")


def kinds_of(annotation):
    if typing.get_origin(annotation) in {typing.Annotated, typing.Union, UnionType}:
        return [kind for argument in typing.get_args(annotation) for kind in kinds_of(argument)]
    return [annotation] if isinstance(annotation, type) else []


def numbers():
    for section, field in RunConfig.model_fields.items():
        model = field.annotation
        for key, known in (
            model.model_fields.items() if isinstance(model, type) and issubclass(model, BaseModel) else ()
        ):
            if {int, float} & set(kinds_of(known.annotation)):
                yield section, key


NUMBERS = sorted(numbers())
NEEDS = {
    "ecn": "ecn = true\n",
    "pfc": "pfc = true\n",
    "virtual_lanes": 'switch = "credits"\n',
    "lane_buffer": 'switch = "credits"\n',
    "credit_unit": 'switch = "credits"\n',
    "credit_return": 'switch = "credits"\n',
    "credit_frame": 'switch = "credits"\n',
    "trim_last_hop": 'pfc = false\ntrimming = true\ntrim_threshold = "20kB"\n',
    "trim_share": 'pfc = false\ntrimming = true\ntrim_threshold = "20kB"\n',
    "trimmed_size": 'pfc = false\ntrimming = true\ntrim_threshold = "20kB"\n',
    "high_": 'switch = "credits"\nvirtual_lanes = 2\n',
    "endpoint_delay": 'fidelity = "analytical"\n',
    "reduction_bandwidth": 'fidelity = "analytical"\n',
    "resolution": 'fidelity = "analytical"\n',
    "reorder": 'load_balancing = "spray"\n',
}


def test_all_numeric_keys_are_found():
    assert len(NUMBERS) > 30
    assert {("network", "ack"), ("network", "buffer"), ("memory", "bandwidth"), ("engine", "seed")} <= set(NUMBERS)


def value_of(path, section, key):
    """What a key holds, or None and what is wrong."""
    try:
        return getattr(getattr(load_config(path), section), key), ""
    except ConfigError as error:
        return None, str(error)


@pytest.mark.parametrize(("section", "key"), NUMBERS)
def test_what_a_key_holds_fits_the_engine(tmp_path, section, key):
    """Whatever is written is refused in one line, or becomes a number that is far from overflowing."""
    needs = next((text for word, text in NEEDS.items() if key.startswith(word)), "")
    for value in (*HUGE, *SMALL, "0", "1", "true", '"x"'):
        path = tmp_path / "run.toml"
        fabric = 'cluster = "selene"' if section == "topology" else f'spec = "ring:npus=4"\n[{section}]'
        path.write_text(
            f'[workload]\ntraces = "x"\n[topology]\n{fabric}\n'
            f"{needs if section == 'network' and not needs.startswith(key) else ''}{key} = {value}\n"
        )
        held, text = value_of(path, section, key)
        assert "\n" not in text
        assert len(text) < 400
        assert held is not None or (text.startswith(f"{path}: [{section}]") and key in text)
        assert held is None or abs(held) <= (10**24 if key == "peak_flops" else engine.INF)


def test_bounds_are_what_the_engine_holds():
    assert bounds.MAX_WIRE_BYTES == packet.MAX_WIRE_BYTES
    assert packet.HALF_PSN // 2 == bounds.MAX_WINDOW_PACKETS
    assert bounds.MAX_COLLECTIVES_IN_FLIGHT == quantities.MAX_EQUAL_MESSAGES
    assert (bounds.MAX_TELEMETRY_BUFFER_BYTES + 1).bit_length() - 1 == 64 - engine.TELEMETRY_QUEUE_SHIFT - 1
    assert quantities.MAX_BYTES == (1 << packet.BYTES_BITS) - 1
    assert engine.MAX_NODES - 1 == quantities.MAX_NODES
    assert 2 * quantities.MAX_CABLES == engine.MAX_LINKS
    assert engine.LONGEST_RUN_PS + quantities.LONGEST_PS < engine.INF
    assert quantities.LONGEST_TIMEOUT_PS == MAX_RTO_PS
    assert MAX_RTO_PS << MAX_BACKOFF <= quantities.LONGEST_PS
    slowest_packet_ps = packet.MAX_WIRE_BYTES * 8e12 / quantities.LINK_RATE_BPS.minimum
    assert slowest_packet_ps < quantities.LONGEST_TIMEOUT_PS
    assert quantities.LONGEST_DELAY_PS > ECHO_MASK  # so controls that go by it check the round trip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    from nadi import et
    from nadi.cli.main import main

    folder = tmp_path_factory.mktemp("run")
    for npu in range(4):
        nodes = [et.coll_node(1, "grads", et.CollectiveCommType.ALL_REDUCE, 1 << 16)]
        et.write_trace(folder / f"t.{npu}.et", et.metadata(), nodes)
    run = folder / "run.toml"
    run.write_text('[workload]\ntraces = "t"\n[topology]\nspec = "ring:npus=4"\n')
    assert main(["run", str(run), "--out", str(folder / "out"), "-q", "--json"]) == 0
    return folder / "out", run


def spoil_table(change):
    def spoil(out):
        table = pq.read_table(out / "links.parquet")
        pq.write_table(change(table), out / "links.parquet")

    return spoil


def swapped(table):
    """Numbers for names, and names for numbers."""
    rest = table.drop_columns(["src", "tx_packets"])
    return rest.append_column("src", table["tx_packets"]).append_column("tx_packets", table["dst"])


def deep(out):
    (out / "summary.json").write_text("[" * 100_000)


def long_number(out):
    (out / "summary.json").write_text('{"finish_time_ps": ' + "9" * 5000 + "}")


def fifo(out):
    (out / "summary.json").unlink()
    os.mkfifo(out / "summary.json")


def says(**values):
    """Another value of summary.json."""

    def spoil(out):
        found = json.loads((out / "summary.json").read_text())
        (out / "summary.json").write_text(json.dumps(found | values))

    return spoil


SPOILT = {
    "deep JSON": (deep, "lists are nested too deeply"),
    "5,000 digits": (long_number, "summary.json: no JSON"),
    "a FIFO": (fifo, "a FIFO, not a file"),
    "text for a number": (says(finish_time_ps="9"), "finish_time_ps: found '9'"),
    "nothing for a section": (says(config=None), "config: found None"),
    "a list for a number": (says(step={"dp_ps": []}), "step.dp_ps: found []"),
    "no column": (spoil_table(lambda t: t.drop_columns(["tx_packets", "src"])), "no column"),
    "column of text": (spoil_table(swapped), "; expected text"),
    "no Parquet": (lambda out: (out / "links.parquet").write_bytes(b"PAR1 and no more"), ""),
    "cut Parquet": (lambda out: os.truncate(out / "links.parquet", 500), ""),
}


@pytest.mark.parametrize("case", SPOILT)
def test_spoilt_results(nadi, results, tmp_path, case):
    spoil, words = SPOILT[case]
    out, run = tmp_path / "out", results[1]
    shutil.copytree(results[0], out)
    spoil(out)
    for arguments in (("net", out), ("partition", run, "--parts", "2", "--weights", out)):
        outcome = nadi.refuse(*arguments)
        assert str(out) in outcome.err
        assert words in outcome.err


def test_a_table_that_claims_more_rows_than_memory_holds(nadi, results, tmp_path, monkeypatch):
    out = tmp_path / "out"
    shutil.copytree(results[0], out)
    monkeypatch.setattr("nadi.simulation.earlier_run.os.sysconf", lambda _: 10)
    for arguments in (("net", out), ("partition", results[1], "--parts", "2", "--weights", out)):
        assert "more than this machine's memory holds" in nadi.refuse(*arguments).err


def test_a_collective_whose_memory_is_damaged(nadi, monkeypatch):
    run = workers.WorkerPool._work

    def run_and_write(self, worker):
        run(self, worker)
        next_time = self.sim.lps[0].world.net.next_time
        np.lib.stride_tricks.as_strided(next_time, (len(next_time) + 1,))[-1] = 7

    monkeypatch.setattr(workers.WorkerPool, "_work", run_and_write)
    done = nadi("collective", "all-reduce", "-t", "switch:npus=4", "--sizes", "1KiB", "--algorithm", "ring", "-q")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "LP 0: memory of array next_time was overwritten 0 bytes behind its end" in done.err
    assert "Traceback" not in done.err
    assert "ring" not in done.out


def test_send_latency_with_nvls(nadi):
    """The command of issue 27, which ended with SIGSEGV."""
    how = ("-t", "dgx-h100:npus=8", "--sizes", "1MiB", "--set", "network.send_latency=1us", "-q", "--json")
    (row,) = nadi.ok("collective", "all-reduce", "--algorithm", "nvls", *how).document["rows"]
    assert row["ratio"] == 1
