"""[[faults]] of a run file through the command line."""

import json

import pyarrow.parquet as pq
import pytest

from nadi import et
from tests.nonempty import nonempty

SPINES = 'spec = "leaf-spine:leaves=2,hosts_per_leaf=2,spines=2,uplinks=2,rate=100Gbps,delay=1us"'
RING = 'spec = "ring:npus=4,rate=100Gbps,delay=1us"'
PAIR = 'spec = "switch:npus=2,rate=100Gbps,delay=1us"'
US = 10**6
DOWN = 'link = "4-6"\nstate = "down"\n'


def fault(text, at="1us"):
    return f'[[faults]]\nat = "{at}"\n{text}\n'


# text of the run file, words that the line must hold
BAD = {
    "no time": ('[[faults]]\nlink = 0\nstate = "down"\n', ["[faults.0] at", "missing"]),
    "no place": (fault('state = "down"'), ["[faults.0]", "none of link, switch and npu"]),
    "two places": (fault('link = 0\nnpu = 1\nstate = "down"'), ["link and npu", "exactly one"]),
    "nothing happens": (fault("link = 0"), ["found nothing for a link", "rate"]),
    "two things": (fault('link = 0\nstate = "down"\nrate = "1Gbps"'), ["state and rate", "exactly one"]),
    "a slow link": (fault("link = 0\nslowdown = 2.0"), ["slowdown for a link", "expected exactly one of state"]),
    "a switch that errs": (fault("switch = 6\nerror_rate = 0.1"), ["error_rate for a switch"]),
    "an NPU down": (fault('npu = 0\nstate = "down"'), ["state for a npu", "slowdown"]),
    "another state": (fault('link = 0\nstate = "up"'), ["[faults.0] state", "'down'"]),
    "unknown key": (fault('link = 0\nstat = "down"'), ["[faults.0] stat", "unknown key", "state"]),
    "rate zero": (fault('link = 0\nrate = "0Gbps"'), ["[faults.0] rate", "zero", 'state = "down"']),
    "a rate without unit": (fault("link = 0\nrate = 5"), ["[faults.0] rate", "400Gbps"]),
    "speed-up": (fault("npu = 0\nslowdown = 0.5"), ["[faults.0] slowdown", "0.5", "1 to 1000"]),
    "error rate": (fault("link = 0\nerror_rate = 1.5"), ["[faults.0] error_rate", "1.5"]),
    "the end before the begin": (fault('until = "1us"\n' + DOWN), ["[faults.0]", "until 1us", "after at 1us"]),
    "no unit": ('[[faults]]\nat = 5\nlink = 0\nstate = "down"\n', ["[faults.0] at", "not a time"]),
    "unknown link": (fault('link = 99\nstate = "down"'), ["[faults.0] link", "99", "0 to 23"]),
    "negative link": (fault('link = -1\nstate = "down"'), ["[faults.0] link", "-1"]),
    "unknown node": (fault('link = "4-99"\nstate = "down"'), ["[faults.0] link", "node 99", "0 to 7"]),
    "not linked": (fault('link = "0-6"\nstate = "down"'), ["npu 0 and", "not linked", "nodes next to 0: 4"]),
    "no ends": (fault('link = "ab"\nstate = "down"'), ["[faults.0] link", "12-40", "leaf 0 - spine 1"]),
    "ends that are no nodes": (fault('link = "a-b"\nstate = "down"'), ["[faults.0] link: found 'a'", "npu 0, leaf 0"]),
    "a name that is near": (fault('switch = "laef 1"\nstate = "down"'), ["[faults.0] switch", "nearest: leaf 1"]),
    "a number too high": (fault('switch = "leaf 2"\nstate = "down"'), ["'leaf 2'", "one of leaf 0 to leaf 1"]),
    "an end too high": (fault('link = "leaf 0 - spine 2"\nstate = "down"'), ["'spine 2'", "spine 0 to spine 1"]),
    "an NPU too high": (fault('npu = "npu 4"\nslowdown = 2'), ["[faults.0] npu", "'npu 4'", "npu 0 to npu 3"]),
    "names that are not linked": (fault('link = "leaf 0 - leaf 1"\nstate = "down"'), ["not linked", "6 (spine 0)"]),
    "an NPU's name as a switch": (fault('switch = "npu 1"\nstate = "down"'), ["found npu 1", "'leaf 0' or 'spine 1'"]),
    "unknown cable": (fault("cable = 2\n" + DOWN), ["[faults.0] cable", "2", "0 to 1"]),
    "cable of nothing": (fault('cable = 0\nswitch = 6\nstate = "down"'), ["cable", 'link = "a-b"']),
    "an NPU as a switch": (fault('switch = 3\nstate = "down"'), ["[faults.0] switch", "3", "4 to 7"]),
    "unknown NPU": (fault("npu = 4\nslowdown = 2"), ["[faults.0] npu", "4", "0 to 3"]),
    "overlap": (fault(DOWN) + fault("cable = 1\n" + DOWN, "8us"), ["[faults.1] state", "[faults.0]"]),
    "overlap of NPUs": (fault("npu = 0\nslowdown = 2") + fault("npu = 0\nslowdown = 3", "9s"), ["[faults.1] slowdown"]),
    "rates and cut-through": (
        "[network]\ncut_through = true\n" + fault('link = 0\nrate = "1Gbps"'),
        ["[faults.0] rate", "cut through"],
    ),
    "detection time": ('[network]\ndetection_time = "soon"\n', ["[network] detection_time", "soon"]),
}  # fmt: skip


def reduce(size):
    return [[et.coll_node(1, "grads", et.CollectiveCommType.ALL_REDUCE, size)]] * 4


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(nadi, write_run, tmp_path, case):
    text, words = BAD[case]
    outcome = nadi("run", write_run(reduce(1024), text, SPINES), "--out", tmp_path / "out", "-q")
    assert (outcome.code, outcome.out) == (2, ""), outcome
    assert outcome.err.count("\n") == 1
    for word in nonempty(words):
        assert word in outcome.err
    assert not (tmp_path / "out").exists()


def test_a_ring_has_no_way_around(nadi, write_run):
    outcome = nadi("run", write_run(reduce(1024), fault('link = 0\nstate = "down"'), RING), "-q")
    assert outcome.code == 2
    assert "routed by dimensions" in outcome.err
    assert nadi("run", write_run(reduce(1024), fault('link = 0\nrate = "1Gbps"'), RING), "-q").code == 0


def test_a_fabric_that_stays_cut_gives_up(nadi, write_run):
    text = '[network]\nrto = "20us"\nmax_retries = 2\n' + fault('link = "0-4"\nstate = "down"')
    outcome = nadi("run", write_run(reduce(1 << 20), text, SPINES), "-q")
    assert outcome.code == 1
    assert "has no path to npu" in outcome.err
    assert "since link npu 0 - leaf 0 went down at 0.001 ms: packet" in outcome.err
    assert "unacknowledged after 3 timeouts" in outcome.err


def test_a_link_that_loses_too_much_is_named(nadi, write_run):
    text = '[network]\nrto = "20us"\nmax_retries = 1\n' + fault('link = "0-4"\nerror_rate = 0.95')
    outcome = nadi("run", write_run(reduce(1 << 20), text, SPINES), "-q")
    assert outcome.code == 1
    assert "; lossy by faults: link npu 0 - leaf 0 (error_rate 0.95)" in outcome.err


def test_a_slow_link_is_as_busy_as_its_own_rate_says(nadi, write_run, tmp_path):
    """An all-reduce of two NPUs over a link at a tenth of its rate, all the time, and for the first half of it."""
    found = []
    for number, until in enumerate(("", 'until = "1ms"\n')):
        out = tmp_path / f"out{number}"
        run = write_run(reduce(8 << 20)[:2], fault(f'{until}link = "0-2"\nrate = "10Gbps"', "0us"), PAIR)
        assert nadi("run", run, "--out", out, "-q").code == 0
        links = pq.read_table(out / "links.parquet").to_pydict()
        summary = json.loads((out / "summary.json").read_text())
        finish_s = summary["finish_time_ps"] / 1e12
        slow_s = min(finish_s, 1e-3 if until else finish_s)
        could_send = (slow_s * 10e9 + (finish_s - slow_s) * 100e9) / 8
        place = next(i for i, ends in enumerate(zip(links["src"], links["dst"], strict=True)) if ends[0] == "npu 0")
        assert links["utilisation"][place] == pytest.approx(links["tx_bytes"][place] / could_send, rel=1e-3)
        assert links["rate_bps"][place] == 100 * 10**9
        found.append(links["utilisation"][place])
    assert found[0] == pytest.approx(1, rel=0.02)
    assert 0.5 < found[1] <= 1


@pytest.mark.alone
def test_what_was_chosen_stands_in_the_summary_and_ways_of_running_agree(nadi, write_run, tmp_path):
    text = (
        '[network]\ndetection_time = "30us"\nrto = "50us"\n'
        + fault('until = "100us"\nswitch = 7\nstate = "down"', "10us")
        + fault('cable = 1\nlink = "4-6"\nrate = "10Gbps"', "5us")
        + fault('link = 2\nadded_latency = "3us"', "0us")
        + fault("npu = 1\nslowdown = 1.5", "0us")
    )
    run = write_run(reduce(1 << 20), text, SPINES)
    found = []
    for number, options in enumerate(
        ([], ["--workers", "2"], ["--workers", "2", "--backend", "processes"], ["--workers", "3"])
    ):
        out = tmp_path / f"out{number}"
        outcome = nadi("run", run, "--out", out, "-q", *options)
        assert outcome.code == 0, outcome.err
        found.append(json.loads((out / "summary.json").read_text()))
    assert len({summary["digest"] for summary in found}) == 1
    assert found[0]["config"]["network"]["detection_time"] == "30us"
    assert found[0]["config"]["faults"][1] == {"at": "5us", "link": "4-6", "cable": 1, "rate": "10Gbps"}
    assert found[0]["lost_packets"] > 0


def test_names_mean_what_numbers_do(nadi, write_run):
    """As reports print them, also with their arrow; leaves are nodes 4 and 5, spines 6 and 7."""
    ways = (
        ('link = "4-7"', "switch = 6", "npu = 1"),
        ('link = "leaf 0 - spine 1"', 'switch = "spine 0"', 'npu = "npu 1"'),
        ('link = "spine 1 → leaf 0"', 'switch = "6"', 'npu = "1"'),
        ('link = "leaf 0-spine 1"', 'switch = " spine  0 "', "npu = 1"),
        ('link = "leaf 0 -> 7"', "switch = 6", "npu = 1"),
    )
    digests = set()
    for link, switch, npu in ways:
        text = fault(f'{link}\nadded_latency = "3us"', "0us") + fault(f"{npu}\nslowdown = 1.5", "0us")
        text += fault(f'{switch}\nuntil = "40us"\nstate = "down"', "10us")
        outcome = nadi("run", write_run(reduce(1 << 16), text, SPINES), "-q", "--json")
        assert outcome.code == 0, outcome.err
        digests.add(outcome.document["digest"])
    assert len(digests) == 1


def test_names_with_dashes_of_their_own(nadi, write_run, tmp_path):
    net = """npus = 2
[[switches]]
name = "tor-a-1"
[[switches]]
name = "tor-a"
[[links]]
rate = "100Gbps"
delay = "1us"
cables = [["npu 0", "tor-a-1"], ["npu 1", "tor-a"], ["tor-a-1", "tor-a"]]
"""
    (tmp_path / "net.toml").write_text(net)
    sent = [[et.send_node(1, "s", 0, 1, 4096)], [et.recv_node(1, "r", 0, 1, 4096)]]
    times = []
    for text in (
        "",
        *(fault(f'link = "{ends}"\nadded_latency = "3us"', "0us") for ends in ("tor-a-1-tor-a", "0-tor-a-1")),
    ):
        outcome = nadi("run", write_run(sent, text, 'file = "net.toml"'), "-q", "--json")
        assert outcome.code == 0, outcome.err
        times.append(outcome.document["finish_time_ps"])
    assert times[1] - times[0] == times[2] - times[0] == 3 * US
