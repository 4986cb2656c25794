"""Every key of a run file with values of every wrong type: one line with exit code 2, or a value that the key takes."""

import pytest

from nadi.cli.main import main
from nadi.configuration.effects import CONDITIONS
from tests.nonempty import nonempty

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
