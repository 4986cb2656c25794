"""Remote memories of ASTRA-sim: none, one per NPU, one per node, or one for all NPUs.

Source: astra-sim/astra-memory-analytical, AnalyticalRemoteMemory.cc. An access takes remote-mem-latency in ns and
tensor_size / remote-mem-bw in GB/s of 10^9 bytes; a memory of a node or pool serves one access at a time.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat

from nadi.errors import ConfigError
from nadi.importers.file_sections import FileSections
from nadi.importers.files import PeerFile, read_model

_EXPECTED = "a remote memory of ASTRA-sim (JSON with memory-type)"


class MemoryFile(PeerFile):
    """Keys of a remote memory file."""

    kind: Literal["NO_MEMORY_EXPANSION", "PER_NODE_MEMORY_EXPANSION", "PER_NPU_MEMORY_EXPANSION", "MEMORY_POOL"] = (
        Field("NO_MEMORY_EXPANSION", alias="memory-type")
    )
    latency_ns: Annotated[FiniteFloat, Field(ge=0, le=1e12)] = Field(0.0, alias="remote-mem-latency")
    bandwidth_gb_s: Annotated[FiniteFloat, Field(ge=0, le=1e6)] = Field(0.0, alias="remote-mem-bw")
    nodes: Annotated[int, Field(ge=0)] = Field(0, alias="num-nodes")
    npus_per_node: Annotated[int, Field(ge=0)] = Field(0, alias="num-npus-per-node")


def read_memory(path: Path, npus: int) -> FileSections:
    """Return what a remote memory file says about a network of `npus` NPUs."""
    file = read_model(path, MemoryFile, _EXPECTED)
    if file.kind == "NO_MEMORY_EXPANSION":
        return FileSections({"memory": {"remote": "none"}}, tuple(file.unknown_keys()))
    if not file.bandwidth_gb_s:
        raise ConfigError(f"{path}: remote-mem-bw: found 0; expected more than 0 with {file.kind}")
    sharers = {"PER_NODE_MEMORY_EXPANSION": min(file.npus_per_node, npus), "MEMORY_POOL": npus}.get(file.kind, 1)
    if file.kind == "PER_NODE_MEMORY_EXPANSION" and file.nodes * sharers < npus:
        raise ConfigError(f"{path}: num-nodes: found {file.nodes} of {sharers} NPUs; expected room for {npus} NPUs")
    memory: dict[str, Any] = {
        "remote": "npu",
        "remote_sharers": sharers,
        "remote_latency": f"{round(file.latency_ns * 1000)}ps",
        "remote_bandwidth": f"{round(file.bandwidth_gb_s * 8e9)}bps",
    }
    return FileSections({"memory": memory}, tuple(file.unknown_keys()))
