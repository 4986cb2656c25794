"""Numbers have bounds, which fit what the engine holds; whatever is beyond is one line and exit code 2."""

import typing
from types import UnionType

import pytest
from pydantic import BaseModel

from nadi import et
from nadi.configuration import MAX_COLLECTIVES_IN_FLIGHT, MAX_TELEMETRY_BUFFER_BYTES, MAX_WINDOW_PACKETS, MAX_WIRE_BYTES
from nadi.configuration.run_config import RunConfig
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.inputs import limits as quantities
from nadi.inputs.limits import MAX_EQUAL_MESSAGES
from nadi.pdes.construction.fabric import MAX_RTO_PS
from nadi.pdes.core import packet
from nadi.pdes.core import state as engine
from nadi.pdes.core.packet import BYTES_BITS
from nadi.pdes.nic.control import ECHO_MASK
from nadi.pdes.nic.port import MAX_BACKOFF
from tests.nonempty import nonempty

HUGE = ("9" * 30, "1" + "0" * 300, str(2**63), str(2**62 + 1), '"99999999PB"', '"9e9s"', '"1e30ps"', '"9e90GB/s"')
TINY = ("-1", '"-1ns"', '"1bps"', '"0.1ps"', "nan", "-inf")


def kinds_of(annotation):
    """The types of a key, without what validates them."""
    if typing.get_origin(annotation) in {typing.Annotated, typing.Union, UnionType}:
        return [kind for argument in typing.get_args(annotation) for kind in kinds_of(argument)]
    return [annotation] if isinstance(annotation, type) else []


def numbers():
    """Every key that takes numbers, sizes, rates or times."""
    for section, field in RunConfig.model_fields.items():
        model = field.annotation
        for key, known in (
            model.model_fields.items() if isinstance(model, type) and issubclass(model, BaseModel) else ()
        ):
            if {int, float} & set(kinds_of(known.annotation)):
                yield section, key


KEYS = sorted(numbers())
NEEDS = {
    "ecn": "ecn = true\n",
    "pfc": "pfc = true\n",
    "endpoint_delay": 'fidelity = "analytical"\n',
    "reduction_bandwidth": 'fidelity = "analytical"\n',
    "resolution": 'fidelity = "analytical"\n',
    "reorder": 'load_balancing = "spray"\n',
}


def test_all_numeric_keys_are_found():
    assert len(KEYS) > 30
    assert {("network", "ack"), ("network", "buffer"), ("memory", "bandwidth"), ("engine", "seed")} <= set(KEYS)


def value_of(path, section, key):
    """What a key holds, or None and what is wrong."""
    try:
        return getattr(getattr(load_config(path), section), key), ""
    except ConfigError as error:
        return None, str(error)


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_what_a_key_holds_fits_the_engine(tmp_path, section, key):
    """Whatever is written is refused in one line, or becomes a number that is far from overflowing."""
    needs = next((text for word, text in NEEDS.items() if key.startswith(word)), "")
    for value in (*HUGE, *TINY, "0", "1", "true", '"x"'):
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
    assert MAX_WIRE_BYTES == packet.MAX_WIRE_BYTES
    assert packet.HALF_PSN // 2 == MAX_WINDOW_PACKETS
    assert MAX_COLLECTIVES_IN_FLIGHT == MAX_EQUAL_MESSAGES
    assert (MAX_TELEMETRY_BUFFER_BYTES + 1).bit_length() - 1 == 64 - engine.TELEMETRY_QUEUE_SHIFT - 1
    assert quantities.MAX_BYTES == (1 << BYTES_BITS) - 1
    assert engine.MAX_NODES - 1 == quantities.MAX_NODES
    assert 2 * quantities.MAX_CABLES < engine.MAX_LINKS
    assert engine.LONGEST_RUN_PS + quantities.LONGEST_PS < engine.INF
    assert quantities.LONGEST_TIMEOUT_PS == MAX_RTO_PS
    assert MAX_RTO_PS << MAX_BACKOFF <= quantities.LONGEST_PS
    slowest_packet_ps = packet.MAX_WIRE_BYTES * 8e12 / quantities.LINK_RATE_BPS.minimum
    assert slowest_packet_ps < quantities.LONGEST_TIMEOUT_PS
    assert quantities.LONGEST_DELAY_PS > ECHO_MASK  # so controls that go by it check the round trip


RING = 'spec = "ring:npus=2,rate=100Gbps,delay=1us"'


def message(size, tag=0):
    return [[et.send_node(1, "s", 0, 1, size, tag)], [et.recv_node(1, "r", 0, 1, size, tag)]]


# what is wrong: nodes of each NPU, topology, further text, words that the line must hold
RUNS = {
    "a send of 2^62": (message(2**62), RING, "", ["trace.0.et: node 1", str(2**62), "at most 70368744177663 bytes"]),
    "a collective of 2^62": (
        [[et.coll_node(1, "a", et.CollectiveCommType.ALL_REDUCE, 2**62)]] * 2,
        RING,
        "",
        ["trace.0.et: node 1", "comm_size", "at most 70368744177663"],
    ),
    "a tag of 2^24": (message(8, 1 << 24), RING, "", ["trace.0.et: node 1", "comm_tag", "below 2^24"]),
    "a year of compute": (
        [[et.comp_node(1, "c", duration_micros=3 * 10**13)]],
        RING,
        "",
        ["trace.0.et: node 1", "duration_micros", "1000000000000"],
    ),
    "1 bps": (message(8), 'spec = "ring:npus=2,rate=1bps"', "", ["rate", "'1bps'", "1Mbps to 1000Tbps"]),
    "an hour of delay": (message(8), 'spec = "ring:npus=2,delay=3600s"', "", ["delay", "3600s", "at most 1s"]),
    "no header": (message(8), RING, "[network]\nheader = 0", ["[network] header", "0", "more than 0"]),
    "a large ack": (message(8), RING, "[network]\nack = 65536", ["[network] ack", "65536", "65.535kB"]),
    "a huge buffer": (
        message(8),
        RING,
        f"[network]\nbuffer = {2**63 - 1}",
        ["[network] buffer", "9223372036854775807", "at most"],
    ),
    "a huge threshold": (
        message(8),
        RING,
        f"[network]\necn_kmax = {2**63 - 1}",
        ["[network] ecn_kmax", "9223372036854775807"],
    ),
    "a window of too many packets": (
        message(8),
        RING,
        "[network]\nmtu = 1\nwindow = '1GiB'",
        ["[network] window", "1073741824 packets", "4194304"],
    ),
    "a deep buffer with telemetry": (
        message(8),
        'spec = "switch:npus=2"',
        "[network]\nbuffer = '1GB'\ncongestion_control = 'hpcc'",
        ["[network] buffer", "1GB", "hpcc"],
    ),
    "round trips beyond the echo": (
        message(8),
        'spec = "switch:npus=2,delay=500ms"',
        "[network]\ncongestion_control = 'timely'",
        ["congestion_control", "timely", "at most 137.4"],
    ),
    "too many links of a node": (
        message(8),
        'spec = "switch:npus=30000,rate=1000Tbps"',
        "",
        ["[topology]", "a node of 30000 links"],
    ),
    "eta of -1": (
        message(8),
        'spec = "switch:npus=2"',
        "[network]\ncongestion_control = 'hpcc'\ncongestion = { eta = -1 }",
        ["[network] congestion", "eta is -1", "0.01 to 1"],
    ),
    "a fault after the end of time": (
        message(8),
        RING,
        '[[faults]]\nat = "9e6s"\nlink = 0\nrate = "1Gbps"',
        ["[faults.0] at", "9e6s", "at most 1000000s"],
    ),
    "a fault of 1 bps": (message(8), RING, '[[faults]]\nat = 0\nlink = 0\nrate = "1bps"', ["[faults.0] rate", "1Mbps"]),
    "slower than can be": (
        [[et.comp_node(1, "c", duration_micros=10**12)]],
        RING,
        "[[faults]]\nat = 0\nnpu = 0\nslowdown = 1000.0",
        ["slowdown", "26 days"],
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_runs_out_of_bounds(nadi, write_run, tmp_path, case):
    nodes, topology, text, words = RUNS[case]
    outcome = nadi("run", write_run(nodes, text, topology), "--out", tmp_path / "out", "-q")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1), outcome
    assert not (tmp_path / "out").exists()
    for word in nonempty(words):
        assert word in outcome.err


COMMANDS = {
    "sizes": ("collective all-reduce -t ring:npus=4 --sizes 1PiB", ["size '1PiB'", "at most"]),
    "step": ("collective all-reduce -t ring:npus=4 --sizes 8:8GiB:x99999999999999999999", ["--sizes", "factor"]),
    "workers": ("collective all-reduce -t ring:npus=4 --workers 100000", ["--workers", "4096"]),
    "seed": (f"collective all-reduce -t ring:npus=4 --seed {2**63}", ["--seed", str(2**62)]),
    "bench size": ("bench -t ring:npus=4 --size 99999999TB", ["99999999TB"]),
    "bench size of nothing": ("bench -t ring:npus=4 --size 0", ["--size 0"]),
    "bench runs": ("bench -t ring:npus=4 --runs 1000000", ["--runs", "10000"]),
    "npus": ("topology show ring:npus=99999999999", ["npus", "1 to 4194303"]),
    "hidden": ("workload transformer -o {out} --hidden 99999999999", ["hidden", "99999999999"]),
    "work": ("workload transformer -o {out} --hidden 2000000000 --heads 1 --vocab 2000000000", ["9223372036854775807"]),
    "copies": ("workload transformer -o {out} --npus 100000000", ["npus", "100000000", "524287"]),
    "ratio": ("topology show leaf-spine:npus=64,oversubscription=1e999999999", ["oversubscription", "1/1000000"]),
    "digits": ("topology show ring:npus=4,rate=" + "9" * 5000 + "Gbps", ["rate"]),
    "digits of a size": ("collective all-reduce -t ring:npus=4 --sizes " + "9" * 5000, ["is not a size"]),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_options_out_of_bounds(nadi, tmp_path, case):
    text, words = COMMANDS[case]
    outcome = nadi(*text.format(out=tmp_path / "out").split(), "-q" if text.startswith(("coll", "bench")) else "--json")
    if text.startswith("workload"):
        outcome = nadi(*text.format(out=tmp_path / "out").split())
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1), outcome
    assert not (tmp_path / "out").exists()
    for word in nonempty(words):
        assert word in outcome.err


@pytest.mark.parametrize("nodes", [3, 4, 6])
def test_a_run_of_more_than_26_days_says_so(nadi, write_run, nodes):
    """Nodes of 11.5 days each: of six, the last begin after all that the engine can count. It is no deadlock."""
    days = [et.comp_node(i, "c", duration_micros=10**12, deps=[i - 1] if i else []) for i in range(nodes)]
    run = write_run([days])
    for fidelity in ("packet", "analytical", "closed-form"):
        outcome = nadi("run", run, "-q", "--set", f"network.fidelity={fidelity}")
        assert (outcome.code, outcome.err.count("\n")) == (1, 1)
        assert "26 days" in outcome.err
        assert "deadlock" not in outcome.err


@pytest.mark.parametrize("aware", [False, True])
def test_a_message_of_more_than_26_days_says_so(nadi, write_run, aware):
    run = write_run(message(2**46 - 1), topology='spec = "ring:npus=2,rate=100Mbps"')
    sets = ["--set", "network.fidelity=analytical", "--set", f"network.congestion_aware={str(aware).lower()}"]
    outcome = nadi("run", run, "-q", "--force", *sets)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "26 days" in outcome.err
