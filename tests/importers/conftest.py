"""Small files of other simulators, and their commands."""

import json
from typing import NamedTuple

import pytest

from nadi import et
from nadi.importers.astra_sim import Options, translated
from tests.cli.conftest import nadi  # noqa: F401 - a fixture

SYSTEM = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 1,
    "all-reduce-implementation": ["ring"],
    "all-gather-implementation": ["ring"],
    "reduce-scatter-implementation": ["ring"],
    "all-to-all-implementation": ["ring"],
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600,
}
NETWORK = {"topology": ["Ring"], "npus_count": [4], "bandwidth": [50.0], "latency": [500.0]}


@pytest.fixture
def shipped(nadi, shared_data):  # noqa: F811 - the fixture
    """Run `nadi astra-sim` on files that ASTRA-sim ships and a microbenchmark, with other files."""

    def run(collective, npus, *more, system="native_collectives/Ring_4chunks", network=None):
        data = shared_data / "astra-sim"
        network = network or data / "network" / "analytical" / f"Ring_{npus}npus.yml"
        return nadi.ok(
            "astra-sim",
            f"--workload-configuration={shared_data}/chakra/microbenchmarks/{collective}/{npus}npus_1MB/{collective}",
            f"--system-configuration={data}/system/{system}.json",
            f"--network-configuration={network}",
            f"--remote-memory-configuration={data}/remote_memory/analytical/no_memory_expansion.json",
            *more,
        )

    return run


class AstraSim(NamedTuple):
    """Files of ASTRA-sim in a folder, and the options that name them."""

    folder: object
    arguments: list

    def options(self, **changes):
        given = dict(
            zip(("workload", "system", "network"), (a.partition("=")[2] for a in self.arguments), strict=False)
        )
        paths = {key: self.folder / given[key] for key in ("system", "network")}
        return Options(**({"workload": given["workload"], **paths} | changes))

    def sections(self, **changes):
        return translated(self.options(**changes))


@pytest.fixture
def astra_sim(tmp_path):
    """Write files of ASTRA-sim: an all-reduce of 1 MiB on a ring of four, with other keys, nodes or groups."""

    def write(system=(), network=(), nodes=None, npus=None, **more):
        network = NETWORK | dict(network)
        merged = {key: value for key, value in (SYSTEM | dict(system)).items() if value is not None}
        (tmp_path / "system.json").write_text(json.dumps(merged))
        (tmp_path / "network.yml").write_text(
            "".join(f"{key}: {json.dumps(value)}\n" for key, value in network.items())
        )
        count = npus or __import__("math").prod(network["npus_count"])
        nodes = nodes or [et.coll_node(1, "all_reduce", et.CollectiveCommType.ALL_REDUCE, 1 << 20)]
        for npu in range(count):
            et.write_trace(tmp_path / f"work.{npu}.et", et.metadata(), nodes)
        given = {
            "workload-configuration": tmp_path / "work",
            "system-configuration": tmp_path / "system.json",
            "network-configuration": tmp_path / "network.yml",
        }
        for key, content in more.items():
            option = key.replace("_", "-")
            given[option] = content
            if isinstance(content, dict):
                given[option] = tmp_path / f"{option}.json"
                given[option].write_text(json.dumps(content))
        return AstraSim(tmp_path, [f"--{option}={value}" for option, value in given.items()])

    return write
