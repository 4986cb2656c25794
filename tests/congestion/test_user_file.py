"""A congestion control in a file of the user: it runs as one of Nadi's own would, and a wrong file is refused."""

from pathlib import Path

import pytest

from nadi import pdes
from nadi.configuration.sections import NetworkSection
from nadi.errors import ConfigError
from nadi.pdes import build_world, run
from nadi.pdes.nic import congestion
from nadi.simulation.network_settings import network_settings
from nadi.topologies import build
from tests.pdes.cases import Traces

FINE = """from nadi.pdes.core.jit import hook
TITLE, SIGNALS, PARAMETERS = "", (), {}
@hook
def update(a, b, c, d, e, f, g):
    return 0
"""
CROWD = {"switch": "shared-buffer", "ecn_kmin": "5kB", "ecn_kmax": "20kB", "window": "200kB"}

UNTYPED = FINE.replace("return 0", "return {}[a]")


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


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "No such file or directory; expected a congestion control with update, TITLE, SIGNALS and PARAMETERS"),
        ("x = ", "SyntaxError: invalid syntax"),
        ("x = 1\n", "no update; expected a congestion control with "),
        ("raise OSError('own')", "OSError: own"),
        (UNTYPED, "Error: "),
        (FINE.replace("()", "'rtt'"), "SIGNALS is 'rtt'; expected some of cnp, ecn, rtt, telemetry, as ('rtt',)"),
        (FINE.replace("{}", "()"), "PARAMETERS is (); expected `declared` of a ControlParameters, or {}"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, text, complaint):
    path = tmp_path / "wrong.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        outcome(path)
    assert str(refused.value).startswith(f"[network] congestion_control: {path}: ")
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value.__cause__, pdes.RunError | None)
