"""The documents say what the code does."""

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

from nadi import pdes
from nadi.configuration.run_config import RunConfig
from nadi.configuration.run_file import load_config
from nadi.configuration.sections import SETTINGS
from nadi.launching.workers import Workers
from tests.nonempty import nonempty

ROOT = Path(__file__).parents[2]


OTHERS = {("system", "collectives")}  # algorithms; the engine's setting of that name is a key of [network]


def engine_keys():
    found = {}
    for section in ("network", "system", "engine"):
        for key, field in nonempty(RunConfig.model_fields[section].annotation.model_fields.items()):
            if key in SETTINGS and (section, key) not in OTHERS:
                assert key not in found
                found[key] = field
    return found


def test_every_setting_of_the_engine_is_a_key_with_its_meaning():
    keys = engine_keys()
    assert keys.keys() == SETTINGS.keys()
    assert {setting.key: setting.doc for setting in SETTINGS.values()} == {
        key: f.description for key, f in keys.items()
    }


def test_a_section_of_defaults_gives_the_settings_of_defaults():
    from nadi.simulation.network_settings import network_settings

    config = RunConfig.model_validate({"workload": {"traces": "x"}, "topology": {"spec": "ring:npus=2"}})
    made = network_settings(config.network, config.system, seed=config.engine.seed)
    usual = pdes.Settings(queue_samples=made.queue_samples, logged_pauses=made.logged_pauses)
    assert made == usual
    shared = network_settings(type(config.network).model_validate({"switch": "shared-buffer"}))
    assert shared.switch == pdes.SharedBuffer()


def test_workers_have_the_defaults_of_the_run_file():
    engine = RunConfig.model_fields["engine"].default
    own = Workers()
    assert (own.backend, own.share_memory) == (engine.backend, engine.share_memory)
    # a run chooses these, other commands do not
    assert (engine.workers, engine.lps_per_worker) == (None, None)
    assert (own.workers, own.lps_per_worker) == (1, 1)


def options(group, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from options(command, (*path, name))
        else:
            yield from ((" ".join((*path, name)), option.name, option.default) for option in command.params)


def test_options_have_the_defaults_of_their_keys():
    """Those that say something themselves: others leave it to the run file."""
    import typer

    from nadi.cli.commands import build_app

    engine = RunConfig.model_fields["engine"].default.model_copy(update={"workers": Workers().workers})
    known = {"seed", "workers", "backend", "share_memory"}
    said = [
        (command, name, default)
        for command, name, default in options(typer.main.get_command(build_app()))
        if name in known and default not in {None, "", 0} and not command.startswith("workload")
    ]
    assert len(said) >= 5
    assert [(command, name, getattr(engine, name)) for command, name, _ in said] == said


def test_the_demo_is_a_run_file():
    config = load_config(ROOT / "scripts" / "demo.toml")
    assert config.workload.traces == ROOT / "scripts" / "../demo-out/traces/transformer"


def test_the_demo_makes_the_traces_that_it_says():
    made = re.search(r"nadi (workload transformer .*?)(?: -o|$)", (ROOT / "scripts" / "demo.toml").read_text())[1]
    assert made in (ROOT / "Makefile").read_text()
    assert made in (ROOT / "README.md").read_text()


def test_the_first_run_file_of_the_documents_runs_as_written(nadi, tmp_path, monkeypatch):
    """With the traces that the page says how to make, each word as it stands there."""
    text = (ROOT / "docs" / "reference" / "run-file.md").read_text()
    monkeypatch.chdir(tmp_path)
    made = re.search(r"^    nadi (workload .*)$", text, re.MULTILINE)[1]
    nadi.ok(*made.split())
    Path("run.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    outcome = nadi("run", "run.toml", "--json", "-q")
    assert (outcome.code, outcome.document["npus"]) == (0, 16), outcome.err
    assert min(outcome.document["flows"], outcome.document["finish_time_ps"]) > 0


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
FASTER = {'8, "gb64", confirm=0': '8, "gb8,tp4,mb1", confirm=0', "high - low > 100": "high - low > 300"}
"""Searches of the page, and those of fewer plans and rates that the test does in their place."""


@pytest.mark.slow
def test_every_block_runs(capsys):
    text = PAGE.read_text()
    for said, smaller in FASTER.items():
        assert said in text
        text = text.replace(said, smaller)
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7
    known = {}
    try:
        for number, block in enumerate(blocks):
            exec(compile(block, f"{PAGE.name} block {number}", "exec"), known)  # noqa: S102 - our own page
    finally:
        shutil.rmtree(known.get("folder", "/nowhere"), ignore_errors=True)
    said = capsys.readouterr().out
    assert "a step takes" in said
    assert re.search(r"the step is \d+\.\d% shorter", said)
    assert len(re.findall(r"GiB$", said, re.MULTILINE)) == 3
    assert "4 NPUs, 16 directed links" in said
    first, other = next(line.split() for line in said.splitlines() if re.fullmatch(r"\d+ \d+", line))
    assert int(first) > int(other) > 20_000_000  # a ring is as fast as its slowest cable, of 50 Gbps
    sufficient = int(re.search(r"(\d+) Gb/s are enough", said)[1])
    assert 400 < sufficient < 1600  # the search begins between a rate that is too low and one that suffices
    assert "collectives" in said
    assert len(re.findall(r"[\d.]+% shorter$", said, re.MULTILINE)) >= 2


SCRIPT = Path(__file__).parents[2] / "scripts" / "measured_step.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("measured_step", SCRIPT)
    module = sys.modules["measured_step"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["measured_step"]


@pytest.mark.slow
def test_span_and_all_reduces_of_megatron_are_within_five_percent(script, shared_data, tmp_path):
    archive = shared_data / "pytorch" / "megatron-tp8_host_and_kineto_8ranks.tgz"
    found = script.run(archive, "dgx-a100:npus=8", tmp_path)
    assert len(found.spans_us) == 8
    for measured, simulated in found.spans_us.values():
        assert simulated == pytest.approx(measured, rel=0.05)
    count, measured, simulated = found.collectives_us["ncclDevKernel_AllReduce_Sum_f16_RING_LL"]
    assert count == 81
    assert simulated == pytest.approx(measured, rel=0.05)
    late = sorted(found.started_us)
    assert -1000 < late[len(late) // 20] < late[-len(late) // 20] < 1000
