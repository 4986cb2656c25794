"""Runs with faults stop twice at random moments and continue with other workers, with the same results."""

import pytest

from tests.features.restarting import run_and_restart
from tests.features.running import write_traces

BEGINNING = """
[workload]
traces = "../{kind}/trace"
[topology]
spec = "leaf-spine:leaves=4,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=1us"
[network]
detection_time = "5us"
rto = "40us"
max_retries = 1000
{network}
[engine]
lps_per_worker = 2
[memory]
bandwidth = "100GB/s"
"""
SHARED = 'switch = "shared-buffer"\ncongestion_control = "dcqcn"'
RUNS = {
    "routes": ("all-to-all", "", 'link = "leaf 1 - spine 0"\nat = "20us"\nuntil = "200us"\nstate = "down"'),
    "rates": ("all-reduce", SHARED, 'link = "npu 5 - leaf 2"\nat = "10us"\nuntil = "150us"\nrate = "10Gbps"'),
    "losses": ("all-to-all", SHARED, 'link = "leaf 1 - spine 1"\nat = "1us"\nerror_rate = 0.01'),
    "delays": ("all-to-all", "", 'link = "npu 3 - leaf 1"\nat = "30us"\nuntil = "100us"\nadded_latency = "3us"'),
    "slow NPU": ("all-reduce", "", 'npu = 2\nat = "0us"\nuntil = "1ms"\nslowdown = 3.0'),
}
"""Kind of collective, more keys of [network], and the fault."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("restarts")
    write_traces(folder)
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_faults(folder, capsys, name):
    kind, network, fault = RUNS[name]
    own = folder / f"run {name}"
    own.mkdir()
    (own / "run.toml").write_text(f"{BEGINNING.format(kind=kind, network=network)}[[faults]]\n{fault}\n")
    assert run_and_restart(own / "run.toml") == 0
    assert "--resume continues from the checkpoint" in capsys.readouterr().err
