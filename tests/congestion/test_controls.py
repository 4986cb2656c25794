"""Every congestion control: compiled and as plain Python, the ranges of its parameters, and in a file of the user."""

import importlib
import math
from pathlib import Path

import pytest

from nadi.configuration.sections import NetworkSection
from nadi.errors import ConfigError
from nadi.pdes import RunError, build_world, run
from nadi.pdes.core.state import CC_REST, INF
from nadi.pdes.nic import congestion
from nadi.pdes.nic.congestion.dcqcn import DcqcnState
from nadi.simulation.network_settings import network_settings
from nadi.topologies import build
from tests.congestion.harness import US, Sender, bursts, defaults, stories
from tests.pdes.cases import Traces
from tests.plain_python import plain_python
from tests.refusals import refused

CONTROLS = [name for name in congestion.names() if name != "none"]
ALL = [(name, own, parameter) for name in congestion.names() for own, parameter in congestion.parameters(name).items()]


@pytest.mark.parametrize("name", CONTROLS)
def test_compiled_code_and_plain_python_agree_to_the_bit(name):
    assert stories(name) == plain_python("-m", "tests.congestion.harness", name)


FORGETTING = [("dcqcn", {}), ("dcqcn", {"byte_counter_bytes": 3000}), ("dcqcn", {"g": 0.5, "rp_timer_ps": US})]
FORGETTING += [("hpcc", {}), ("hpcc", {"max_stage": 1}), ("swift", {}), ("swift", {"base_target_ps": US})]


@pytest.mark.parametrize(("name", "overrides"), FORGETTING)
def test_what_a_queue_pair_forgets_at_rest_has_no_effect(name, overrides):
    """Pace and window of later messages are the same to the bit, and what is forgotten makes states equal."""
    assert congestion.control(name).forgets
    for seed in range(20):
        found = bursts(name, seed, rests=True, **overrides)
        assert found == bursts(name, seed, rests=False, **overrides)
        assert len(set(found)) > 3


def test_old_congestion_leaves_alpha_alone():
    """100 ms after the last cut a queue pair of DCQCN has the words of a fresh one, but for alpha and that cut."""
    sender = Sender("dcqcn", gbps=400)
    fresh = {name: sender.row[name] for name in DcqcnState.declared}
    sender.cnp(US)
    sender.cnp(2 * US)
    sender.tell(CC_REST, 10**5 * US)
    differ = {name for name in fresh if sender.row[name] != fresh[name]}
    assert differ == {"alpha", "cut_at_ps"}
    assert sender.row.alpha == 0


@pytest.mark.parametrize("name", ["dcqcn", "dctcp", "timely"])
def test_a_queue_pair_starts_unpaced_with_the_static_window_and_goes_no_higher(name):
    sender = Sender(name, window=17)
    assert (sender.psb, sender.window) == (0, 17)
    for now in range(0, 10**9, 10**7):
        sender.sent(now)
        sender.ack(now, mark=name == "dcqcn")
    assert (sender.psb, sender.window) == (0, 17)


@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    [
        (
            "dcqcn",
            {
                "RATE_AI": 50, "RATE_HAI": 100, "MIN_RATE": 100, "EWMA_GAIN": 0.00390625, "ALPHA_RESUME_INTERVAL": 1,
                "RATE_DECREASE_INTERVAL": 4, "RP_TIMER": 900, "FAST_RECOVERY_TIMES": 1, "CLAMP_TARGET_RATE": 0,
            },
            {"fixed_rate_ai_bps": 5e7, "fixed_rate_hai_bps": 1e8, "min_rate_bps": 1e8, "rp_timer_ps": 900 * US},
        ),
        ("dctcp", {"EWMA_GAIN": 0.25}, {"g": 0.25}),
        ("timely", {"RATE_AI": 50, "RATE_HAI": 100}, {"fixed_delta_bps": 50e6, "fixed_hai_bps": 100e6}),
    ],
)  # fmt: skip
def test_names_of_other_simulators(name, theirs, ours):
    assert dict(zip(defaults(name), congestion.control(name, theirs).values, strict=True)) == defaults(name) | ours


@pytest.mark.parametrize(("name", "own", "parameter"), ALL)
def test_defaults_and_ends_are_allowed_and_nothing_beyond(name, own, parameter):
    allowed = parameter.range
    least, most = allowed.minimum, allowed.maximum
    assert least < most <= INF
    assert allowed.allows(parameter.default)
    assert congestion.control(name).values
    for value in (least, most):
        assert allowed.allows(value)
    for value in (math.nan, math.inf, -math.inf, most * 1.01, least - 1e-9 * max(1.0, abs(least))):
        assert not allowed.allows(value) or value == allowed.special
    with pytest.raises(RunError, match=own):
        congestion.control(name, {own: most * 2})


@pytest.mark.parametrize("name", CONTROLS)
def test_ascending_names_parameters(name):
    module = importlib.import_module(f"nadi.pdes.nic.congestion.{name}")
    assert {each for pair in getattr(module, "ASCENDING", ()) for each in pair} <= {*module.PARAMETERS}


UNTYPED = """from nadi.pdes.core.jit import hook
TITLE, SIGNALS, PARAMETERS = "", (), {}
@hook
def update(a, b, c, d, e, f, g):
    return {}[a]
"""
CROWD = {"switch": "shared-buffer", "ecn_kmin": "5kB", "ecn_kmax": "20kB", "window": "200kB"}


def outcome(control, owner=None, **parameters):
    graph = build("switch:npus=5,rate=100Gbps")
    traces = Traces(5)
    for src in range(1, 5):
        traces.message(src, 0, 1_000_000)
    section = {**CROWD, "congestion_control": str(control), "congestion": parameters}
    settings = network_settings(NetworkSection.model_validate(section))
    return run(build_world(graph, traces.program(), settings, owner))


@pytest.mark.parametrize("name", ["dctcp", "swift"])
def test_a_copy_of_a_control_gives_its_digest(tmp_path, name):
    path = tmp_path / f"copy_of_{name}.py"
    path.write_text(Path(congestion.__path__[0], f"{name}.py").read_text())
    digest = outcome(name).digest
    assert outcome(path).digest == digest
    assert outcome(path, owner=[0, 0, 1, 1, 1, 0]).digest == digest
    assert outcome("none").digest != digest


def test_a_file_has_parameters(tmp_path):
    path = tmp_path / "half.py"
    path.write_text(Path(congestion.__path__[0], "dctcp.py").read_text())
    assert outcome(path, g=0.5).digest == outcome("dctcp", g=0.5).digest != outcome("dctcp").digest
    with pytest.raises(ConfigError, match=r"^\[network\] congestion: .* has no parameter 'h'; expected one of g, "):
        outcome(path, h=1)


def test_a_control_that_does_not_compile_is_refused_in_one_line(tmp_path):
    """tests/records has other wrong files, and parameters out of range."""
    path = tmp_path / "wrong.py"
    path.write_text(UNTYPED)
    line = refused(ConfigError, outcome, path)
    assert line.startswith(f"[network] congestion_control: {path}: ")
    assert "Error: " in line
