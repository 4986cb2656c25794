"""Commands do not import pandas where it is installed, which takes 0.3 s; what a user brings may."""

import os
import subprocess
import sys

import pytest

RUN_ALL = """
import sys
import nadi
from nadi.cli.main import main
for line in sys.stdin:
    print(line, end="", file=sys.stderr)
    code = main(line.split())
    if code:
        sys.exit(code)
print("all commands succeed", file=sys.stderr)
nadi.Run("jobs").flows.to_pandas()
"""
"""Commands without pandas; then a user of Python who gets DataFrames."""
PANDAS = "import os\nos.write(2, b'pandas is imported')\nos._exit(3)\n"
JOBS = """
[topology]
spec = "leaf-spine:npus=8,hosts_per_leaf=4,spines=2"
[output]
sample = "10us"
[[jobs]]
name = "big"
model = "gpt3-125m"
plan = "dp4,mb1,gb4,seq64"
[[jobs]]
name = "other"
gpus = 4
[jobs.traffic]
sizes = "hadoop"
load = 0.1
duration = "10us"
[compute]
gpu = "a100"
[network]
fidelity = "flow"
"""
TRAFFIC = """
[workload.traffic]
sizes = "hadoop"
load = 0.5
duration = "20us"
[topology]
spec = "leaf-spine:npus=4,hosts_per_leaf=2,spines=1"
[network]
switch = "shared-buffer"
pfc = true
"""
SWEEP = """
run = "traffic.toml"
[values]
"network.mtu" = ["1KiB", "4KiB"]
"""
COMMANDS_WITH_TABLES = """
run jobs.toml --out jobs -q --report
run traffic.toml --out traffic -q
collective all-reduce -t ring:npus=2 --sizes 1KiB,64KiB --out collective --fidelity closed-form
sweep sweep.toml -o sweep --jobs 1 -q
compare jobs traffic
report traffic
explain jobs --job big
energy jobs
net traffic
net slowdown jobs --job big
timeline jobs -o jobs.perfetto-trace
partition traffic.toml --parts 2 --weights traffic
"""


@pytest.mark.slow
def test_commands_do_not_import_pandas(tmp_path):
    """PyArrow imports an installed one wherever it converts values. Here a file of that name ends the process."""
    (tmp_path / "pandas.py").write_text(PANDAS)
    for name, text in {"jobs": JOBS, "traffic": TRAFFIC, "sweep": SWEEP}.items():
        (tmp_path / f"{name}.toml").write_text(text)
    options = {"capture_output": True, "text": True, "cwd": tmp_path, "timeout": 600}
    options["env"] = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", RUN_ALL], input=COMMANDS_WITH_TABLES[1:], **options)
    assert (done.returncode, done.stderr.splitlines()[-2:]) == (3, ["all commands succeed", "pandas is imported"])


def test_a_file_of_the_user_may_import_pandas(tmp_path):
    (tmp_path / "pandas.py").write_text("print('pandas is imported')\n")
    (tmp_path / "own.py").write_text("import pandas\n")
    (tmp_path / "run.toml").write_text(TRAFFIC + 'congestion_control = "own.py"\n')
    command = [sys.executable, "-m", "nadi", "run", "run.toml", "-q"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
    assert done.stdout == "pandas is imported\n"
    assert done.stderr.startswith("nadi: error: ")  # the file has no functions
    assert "pandas" not in done.stderr
