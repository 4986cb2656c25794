"""[[faults]] of a run file through the command line; tests/records has what is refused."""

import json

import pyarrow.parquet as pq
import pytest

from nadi import et

SPINES = 'spec = "leaf-spine:leaves=2,hosts_per_leaf=2,spines=2,uplinks=2,rate=100Gbps,delay=1us"'
PAIR = 'spec = "switch:npus=2,rate=100Gbps,delay=1us"'
PLANES = '[network]\nentropy = "mrc"\nnic_ports = "all"\nrto = "50us"\n'
US = 10**6


def fault(text, at="1us"):
    return f'[[faults]]\nat = "{at}"\n{text}\n'


def reduce(size):
    return [[et.coll_node(1, "grads", et.CollectiveCommType.ALL_REDUCE, size)]] * 4


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


def test_a_plane_is_lost(nadi, write_run, tmp_path):
    """All leaves of a plane go down at once, as each of them by itself."""
    planes = 'spec = "multi-plane:npus=8,planes=4,nics_per_leaf=2,spines=2"'
    own = [fault(f'switch = "leaf {leaf}"\nstate = "down"', "10us") for leaf in range(4, 8)]
    found = []
    for text in (fault('switch = "leaf 4 to leaf 7"\nstate = "down"', "10us"), "".join(own)):
        run = write_run(reduce(1 << 20) * 2, PLANES + text, planes)
        assert nadi("run", run, "--out", tmp_path / "out", "--force", "-q").code == 0
        found.append(json.loads((tmp_path / "out" / "summary.json").read_text()))
    assert found[0]["digest"] == found[1]["digest"]
    assert found[0]["lost_packets"] > 0
    for text in ("leaf 7 to leaf 4", "npu 0 to leaf 3"):
        refused = nadi("run", write_run(reduce(1), fault(f'switch = "{text}"\nstate = "down"'), SPINES))
        assert (refused.code, refused.err.count("\n")) == (2, 1)


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
