"""Keys of [network] that a model of the network in a user's file declares: run files have them as those of Nadi's."""

import json
from pathlib import Path

import pytest

from nadi.configuration.effects import Effects
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.inputs import plug_ins
from tests.cli.tiny_model import write_model
from tests.features.restarting import STOPPED, after, different, often

TOY = Path(__file__).parents[1] / "fidelity" / "toy" / "constant.py"
OWN = """
from dataclasses import dataclass
from typing import Literal
from nadi.pdes.core import setting
from nadi.pdes.fidelity import OwnKeys


@dataclass(frozen=True)
class Keys(OwnKeys):
    speed: Literal["fast", "slow"] = setting("fast", "speed of messages")
    pause_ps: int = setting(1000, "pause of a slow message")


NETWORK = NetworkModel(
    name="mine",
    title="takes a microsecond or two",
    use="a test",
    own=Keys,
    conditions={"pause": ('speed = "slow"', lambda network: network.speed == "slow")},
    hooks=(
        MessageHooks("fast", act, alone_ps, contends=False, chosen_by={"speed": "fast"}),
        MessageHooks("slow", slow, slow_alone_ps, contends=False, chosen_by={"speed": "slow"}),
    ),
)
"""
RUN = """
[workload]
model = "gpt3-125m"
plan = "dp4,gb4"
[topology]
spec = "ring:npus=4"
[compute]
gpu = "h100"
[network]
fidelity = "mine.py"
"""


@pytest.fixture
def run_file(tmp_path):
    """Return a run file with more keys of [network], beside the file of a model: a microsecond or, if slow, two."""
    fast = TOY.read_text().partition("NETWORK = ")[0]
    slow = fast[fast.index("@hook") :].replace("act(", "slow(").replace("alone_ps(", "slow_alone_ps(")
    (tmp_path / "mine.py").write_text(f"{fast}\n\n{slow.replace('TIME_PS', '(2 * TIME_PS)')}\n{OWN}")

    def write(keys="", name="run.toml"):
        (tmp_path / name).write_text(f"{RUN}{keys}\n")
        return tmp_path / name

    return write


def test_a_key_chooses_what_messages_do(nadi, run_file):
    at = {}
    for speed in ("fast", "slow"):
        on_it = ("--set", f"network.fidelity={run_file().parent}/mine.py", "--set", f"network.speed={speed}")
        fabric = ("-t", "ring:npus=8", "--sizes", "1MiB", "--algorithm", "ring")
        (row,) = nadi("collective", "all-reduce", *fabric, *on_it, "--json", "-q").document["rows"]
        at[speed] = row["time_ps"]
    assert at == {"fast": 14 * 10**6, "slow": 28 * 10**6}


def test_values_are_settled_and_overridden(run_file):
    defaults = load_config(run_file()).settled()["network"]
    assert (defaults["speed"], defaults["pause"]) == ("fast", "1ns")
    config = load_config(run_file('speed = "slow"\npause = "3us"'))
    assert (config.network.pause, config.network.own_keys.pause_ps) == (3_000_000, 3_000_000)
    assert load_config(run_file('speed = "slow"'), ["network.speed=fast"]).network.speed == "fast"
    packets = load_config(run_file(), ["network.fidelity=packet"])
    assert not hasattr(packets.network, "speed")


def test_effects_know_the_keys(run_file):
    without = Effects(load_config(run_file('pause = "3us"\nmtu = "1KiB"'))).keys()
    assert without["[network] pause"] == 'speed = "slow"'
    assert "[network] mtu" in without
    without = Effects(load_config(run_file('speed = "slow"\npause = "3us"'))).keys()
    assert "[network] pause" not in without


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ('speed = "medium"', "[network] speed: found 'medium'; expected 'fast' or 'slow'"),
        ("pause = -1", "[network] pause: -1 is not a time; expected a number >= 0 and a unit, as 500ns or 1us"),
        ('sped = "slow"', "[network] sped: unknown key; nearest known key: speed"),
    ],
)
def test_wrong_keys_and_values_are_one_line(nadi, run_file, keys, complaint):
    path = run_file(keys)
    refused = nadi("run", path, "-q")
    assert (refused.code, refused.err) == (2, f"nadi: error: {path}: {complaint}\n")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("pause_ps", "mtu", "key mtu of model mine: [network] has another of this name; expected a new name"),
        ("pause_ps: int", "pause: object()", "a type of keys of model mine is none of TOML; expected int, str, ..."),
        (
            "OwnKeys):",
            "OwnKeys):\n    other: int = 3",
            "mine.py: KeyError: 'setting'; expected a network model with NETW",
        ),
    ],
)
def test_a_wrong_declaration_is_one_line(run_file, old, new, complaint):
    path = run_file("pause = 1")
    model = path.with_name("mine.py")
    model.write_text(model.read_text().replace(old, new))
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    text = str(refused.value)
    assert text.startswith(f"{path}: [network] fidelity: ")
    assert complaint in text
    assert "\n" not in text


def test_a_copy_of_a_model_with_keys_is_that_model(nadi, run_file, tmp_path):
    tiny = f"workload.model={write_model(tmp_path, layers=1, hidden=256)}"
    (tmp_path / "copy.py").write_text(plug_ins.own_files("network model")["analytical"].read_text())
    path = run_file('resolution = "10ns"\ncongestion_aware = true')
    digests = []
    for name in ("analytical", tmp_path / "copy.py"):
        nadi.ok(
            "run", path, "--set", f"network.fidelity={name}", "--set", tiny, "--out", tmp_path / "out", "--force", "-q"
        )
        digests.append(json.loads((tmp_path / "out" / "summary.json").read_text())["digest"])
    assert digests[0] == digests[1]


def test_a_restart_has_the_same_keys(nadi, run_file):
    path, whole = run_file('speed = "slow"'), run_file('speed = "slow"', "whole.toml")
    out = path.with_suffix("")
    nadi.ok("run", whole, "--out", whole.with_suffix(""), "-q")
    with often(), after(2):
        assert nadi("run", path, "--out", out, "-q", "--set", "engine.checkpoint=1h").code == STOPPED
    nadi.ok("run", "--resume", out, "-q")
    assert different(out, whole.with_suffix("")) == []
    assert json.loads((out / "summary.json").read_text())["config"]["network"]["speed"] == "slow"
    nadi.ok("report", out)
