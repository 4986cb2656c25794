"""Bus bandwidths of SimAI's analytical mode (busbw.yaml): the time of a collective from its bytes alone.

The file is no YAML: its first line is a title, indentation means nothing, keys end in a comma, and a line that ends in
a colon begins a section. Values are GiB/s of bus bandwidth, which SimAI calls GB/s. Source: UserParam::parseYaml
(system/AstraParamParse.hh) and Layer::compute_time (workload/Layer.cc).
"""

from pathlib import Path
from typing import NamedTuple

from nadi import inputs
from nadi.errors import ConfigError
from nadi.et import CollectiveCommType

_KEYS = {
    CollectiveCommType.ALL_REDUCE: "allreduce",
    CollectiveCommType.ALL_GATHER: "allgather",
    CollectiveCommType.REDUCE_SCATTER: "reducescatter",
    CollectiveCommType.ALL_TO_ALL: "alltoall",
}
_SECTION_OF_GROUP = {"TP": "TP", "DP": "DP", "EP": "EP", "DP_EP": "EP"}
_GIB = 1 << 30
_MAX_GIBPS = 1e6  # far above the NVLink of any GPU, and within the rates of links
_EXPECTED = "bus bandwidths of SimAI (TP:, then allreduce,: 300)"


class BusBandwidths(NamedTuple):
    """The bus bandwidths of a file."""

    path: Path  # path of the file
    gibps: dict[tuple[str, str], float]  # GiB/s by section and key, ("TP", "allreduce"); "null" is left out

    def nanos(self, group: str, kind: CollectiveCommType, size_bytes: int, members: int) -> float:
        """Return the time of a collective in nanoseconds; ConfigError if the file has no bandwidth for it."""
        section, key = _SECTION_OF_GROUP[group], _KEYS[kind]
        if members == 1:
            return 0.0
        if (section, key) not in self.gibps:
            raise ConfigError(f"{self.path}: {section} has no {key}, which the workload uses; expected GB/s")
        factor = (2 if kind == CollectiveCommType.ALL_REDUCE else 1) * (members - 1) / members
        return size_bytes * factor / (self.gibps[section, key] * _GIB) * 1e9

    @property
    def pipeline_bps(self) -> int | None:
        """Bits per second of messages between pipeline stages; None if the file has none."""
        gibps = self.gibps.get(("PP", "busbw"))
        return None if gibps is None else round(gibps * _GIB * 8)


def read_busbw(path: Path) -> BusBandwidths:
    """Return the bus bandwidths in a file; raise ConfigError if a value is wrong or there are none."""
    with inputs.refusing(path, _EXPECTED, ConfigError, UnicodeDecodeError):
        lines = inputs.read_text(path).splitlines()
    section, found = "", {}
    for number, line in enumerate(lines[1:], start=2):
        text = line.partition("#")[0].strip()
        key, _, value = text.partition(":")
        key = key.partition(",")[0].strip()
        if text.endswith(":"):
            section = key
        elif text and value.strip() != "null":
            found[section, key] = _gibps(f"{path}: line {number}: {section} {key}", value.strip())
    if not found:
        raise ConfigError(f"{path}: no bandwidths, expected {_EXPECTED}")
    return BusBandwidths(path, found)


def _gibps(place: str, text: str) -> float:
    """Return a bandwidth in GiB/s; ConfigError, which begins with the place, if the text is none."""
    try:
        value = float(text) if len(text) < 40 else 0.0
    except ValueError:
        value = 0.0
    if not 1e-3 <= value <= _MAX_GIBPS:
        raise ConfigError(f"{place} is {text[:40]!r}, expected GB/s from 0.001 to {_MAX_GIBPS:g}, or null")
    return value
