"""Commands whose standard streams the shell has closed."""

import json
import subprocess
import sys

import pytest

from nadi import et

NADI = f"{sys.executable} -m nadi"


def shell(line, folder):
    return subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("closed", [">&-", "<&- >&-"])
def test_a_run_whose_output_is_closed_writes_its_results(write_run, step, tmp_path, closed):
    write_run([step] * 4)
    done = shell(f"{NADI} run run.toml --out out {closed}", tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["npus"] == 4


@pytest.mark.parametrize("arguments", ["--version", "topology list", "--help", "trace show t.0.et --json"])
def test_what_prints_to_a_closed_output_ends_well(tmp_path, arguments):
    et.write_trace(tmp_path / "t.0.et", et.metadata(), [et.comp_node(1, "x")])
    done = shell(f"{NADI} {arguments} >&-", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", ["run no.toml", "rnu", "run"])
def test_wrong_input_ends_with_2_where_errors_are_closed(tmp_path, arguments):
    done = shell(f"{NADI} {arguments} 2>&-", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_file_does_not_get_the_number_of_a_closed_output(nadi, write_run, step, tmp_path):
    """Else what is printed would go into that file."""
    assert nadi("run", write_run([step] * 4), "--out", tmp_path / "one").code == 0
    assert shell(f"{NADI} run run.toml --out two <&- >&- 2>&-", tmp_path).returncode == 0
    for name in ("nodes.parquet", "npus.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
