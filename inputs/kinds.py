"""The kind of a file by its content, so that a complaint about a wrong file names it and the command that reads it.

Only kinds that users give by mistake are recognised: inputs of Nadi, traces of other tools, tables and archives. Text
is recognised by its first lines, JSON by its first keys: no file is parsed whole, because it may hold gigabytes.
"""

import os
import re
import zlib
from pathlib import Path
from typing import NamedTuple

from nadi.inputs.files import GZIP_MAGIC, type_of

_HEAD_BYTES = 1 << 16
_LONGEST_LENGTH_BYTES = 5


class FileKind(NamedTuple):
    """A kind of file."""

    key: str  # identifier, "chakra", "run-file", ...; with the prefix "gzip:" for a gzipped file
    words: str  # phrase for a sentence, "a Kineto trace (JSON with traceEvents)"
    reader: str = ""  # clause that names what reads such a file; "" if nothing here does
    is_file: bool = True  # False for a folder, a FIFO or another special file


_CHAKRA = FileKind("chakra", "a Chakra trace", "`nadi trace show` and [workload] traces of a run file read it")
_CONVERTER = "`nadi trace convert` makes Chakra traces of it"
_BY_TOPOLOGY = "`nadi topology show` and [topology] file read it"
_INFRAGRAPH = FileKind("infragraph", "an InfraGraph of devices (YAML or JSON)", _BY_TOPOLOGY)
_UNPACK = "unpack it first"
_COMMENTS = r"(?:[ \t]*+(?:#[^\n]*+)?\r?\n)*+[ \t]*+"  # empty lines and lines of comments


def _compiled(*pairs: tuple[str, FileKind]) -> tuple[tuple[re.Pattern[str], FileKind], ...]:
    """Compile pairs of a regular expression and the kind of a text in which it, as the first of its list, matches.

    The expressions take linear time, because the text is a user's: repetitions are possessive, or begin with their end.
    """
    return tuple((re.compile(form, re.DOTALL | re.MULTILINE | re.IGNORECASE), kind) for form, kind in pairs)


# Offset and bytes that a file of each binary kind has there.
_MAGIC = (
    (0, b"PAR1", FileKind("parquet", "a Parquet table", "`nadi net` reads the folder that it lies in")),
    (0, b"\x93NUMPY", FileKind("npy", "a NumPy array (.npy)", "`nadi collective --matrix` reads one")),
    *(
        (0, magic.to_bytes(8, "little"), FileKind("goal-binary", "a GOAL schedule (binary)", _CONVERTER))
        for magic in (4223, 2342)  # of LogGOPSim; the second after a run with --save-mem
    ),
    (257, b"ustar", FileKind("tar", "a tar archive", _UNPACK)),
)
_JSON = _compiled(
    (r'"(traceEvents|deviceProperties)"\s*:', FileKind("kineto", "a Kineto trace (JSON with traceEvents)", _CONVERTER)),
    (
        r'"schema"\s*:\s*"[0-9.]+(-chakra[^"]*)?"\s*,\s*"pid"\s*:',
        FileKind("host-trace", 'a PyTorch host execution trace (JSON with "schema" and "nodes")', _CONVERTER),
    ),
    (
        r'\A\s*\{\s*"[^"]*"\s*:\s*\[\s*\d+\s*[,\]]',
        FileKind("groups", "a group file (JSON with lists of NPUs)", "[workload] groups of a run file names it"),
    ),
    (
        r'"workload_graph"\s*:\s*\[|"type"\s*:\s*"(COMP|COMM_COLL|COMM_SEND|COMM_RECV|MEM_LOAD|MEM_STORE|METADATA)_NODE"',
        FileKind("chakra-json", "a Chakra trace as JSON", "`nadi trace convert` makes a Chakra trace of it"),
    ),
    (
        r'"(?:input_chunks|inputChunks)"\s*:\s*\d',
        FileKind("mscclpp", "an execution plan (MSCCL++'s JSON)", "`--algorithm custom:file=FILE` reads it"),
    ),
    (r'"devices"\s*:\s*\[.*"components"\s*:\s*\[', _INFRAGRAPH),
    (r"", FileKind("json", "JSON")),
)
_TOML = _compiled(
    (
        r"^[ \t]*+\[[ \t]*+(workload|topology)[ \t]*+\]",
        FileKind("run-file", "a run file of Nadi (TOML with [workload])", "`nadi run` reads it"),
    ),
    (
        r"^(npus[ \t]*+=|[ \t]*+\[\[[ \t]*+links[ \t]*+\]\])",
        FileKind("fabric", "a fabric (TOML with npus and links)", _BY_TOPOLOGY),
    ),
    (
        r"^[ \t]*+\[[ \t]*+fabric[ \t]*+\]",
        FileKind("cluster", "a cluster (TOML with [fabric])", "`--cluster` and `nadi topology show` read it"),
    ),
    (r"^nvlink_rate[ \t]*+=", FileKind("machine", "a machine (TOML with nvlink_rate)", _BY_TOPOLOGY)),
    (r"", FileKind("toml", "TOML")),
)
_TEXT = _compiled(
    (
        r"\A\s*<\?xml[^>]*>\s*<algo\b|\A\s*<algo\b",
        FileKind("msccl", "an algorithm (MSCCL's XML)", "`--algorithm custom:file=FILE` reads it"),
    ),
    (
        r"\A\s*+(?:<\?xml[^>]*+>\s*+)?+(?:<!--(?:[^-]|-(?!->))*+-->\s*+)*+<system\b",
        FileKind("nccl-topology", "a topology of NCCL (XML with system)", _BY_TOPOLOGY),
    ),
    (
        r"\A\s*+(?:\x1b?+\[[\d;]*+m)?+\s*+(?:GPU|NIC)0(?:\x1b?+\[[\d;]*+m)?+[ \t]",
        FileKind("nvidia-smi", "a matrix of `nvidia-smi topo -m`", _BY_TOPOLOGY),
    ),
    (r"^(?:infrastructure|devices?|instances):[ \t\r]*+$.*^[ \t]*+-?[ \t]*+(?:components|device|edges):", _INFRAGRAPH),
    (
        r"\A\s*(topology|npus_count)\s*:.*^[ \t]*+(npus_count|bandwidth|topology)[ \t]*:",
        FileKind("astra-sim-network", "a network of ASTRA-sim (YAML)", "`nadi astra-sim` reads it"),
    ),
    (
        r"\A(DATA|MODEL|MICRO|HYBRID_[A-Z_]+|TRANSFORMER\w*|DLRM\w*)\b[^\n]*\n\s*\d+\s*\n",
        FileKind("layers", "a workload of layers (text of SimAI or ASTRA-sim 1.0)", _CONVERTER),
    ),
    (
        r"\A(?:\s++|//[^\n]*+\n|/\*(?:[^*]++|\*(?!/))*+\*/)*+num_ranks\s+\d+\s",
        FileKind("goal", "a GOAL schedule (text of LogGOPSim and ATLAHS)", _CONVERTER),
    ),
    (
        rf"\A{_COMMENTS}Nodes[ \t]++\d++\s++(?:Tiers|Podsize)[ \t]++\d",
        FileKind("htsim-topology", "a topology (htsim's .topo)", _BY_TOPOLOGY),
    ),
    (
        rf"\A{_COMMENTS}Nodes[ \t]++\d++\s++(?:Connections|Triggers|Failures)[ \t]++\d",
        FileKind("htsim-connections", "a connection matrix (htsim's .cm)", "`nadi htsim -tm FILE` reads it"),
    ),
    (
        r"\A\s*+(?:\d++[ \t]++){3,5}\S++[ \t\r]*+\n(?:[ \t]*+\d++)++[ \t\r]*+\n(?:[ \t]*+\d++){2}[ \t]++[\d.]++\w*bps",
        FileKind("simai-topology", "a topology (SimAI's text)", _BY_TOPOLOGY),
    ),
    (r"", FileKind("text", "text")),
)
_JSON_BEGINS = re.compile(r'\s*(\{\s*("|\}|\Z)|\[(?!\d{1,3}m)\s*(\{|\[|"|-?\d|\]|true\b|false\b|null\b))')
_TOML_BEGINS = re.compile(
    r"(?:[ \t]*+(?:#[^\n]*+)?\r?\n)*+[ \t]*+"
    r'(?:\[\[?[ \t]*+[A-Za-z_"][^\n\]]*+\]\]?[ \t]*+(?:#[^\n]*+)?(?:\r?\n|\Z)|[\w."-]++[ \t]*+=[^=])'
)


def kind_of(path: str | os.PathLike[str]) -> FileKind | None:
    """Return the kind of a file; None if it is unknown, or the file cannot be read.

    Args:
        path: The file to recognise, which may be missing.
    """
    other = type_of(path)
    if other:
        has_results = other == "a folder" and (Path(path) / "summary.json").is_file()
        reader = "`nadi net` reads it" if has_results else ""
        words = f"{other}{' of results' * has_results}"
        return FileKind(other.removeprefix("a ").lower(), words, reader, is_file=False)
    try:
        with Path(path).open("rb") as file:
            return kind_of_bytes(file.read(_HEAD_BYTES))
    except (OSError, ValueError):
        return None


def kind_of_bytes(head: bytes) -> FileKind | None:
    """Return the kind of a file by its first bytes; None if it is unknown.

    Args:
        head: The first bytes of the file.
    """
    if not head:
        return FileKind("empty", "empty")
    if head.startswith(GZIP_MAGIC):
        return _of_gzip(head)
    for offset, magic, kind in _MAGIC:
        if head.startswith(magic, offset):
            return kind
    text = _text(head[:_HEAD_BYTES])
    if text is None:
        return _CHAKRA if _is_chakra(head) else None
    kinds = _JSON if _JSON_BEGINS.match(text) else _TOML if _TOML_BEGINS.match(text) else _TEXT
    return next(kind for pattern, kind in kinds if pattern.search(text))


def complaint(path: str | os.PathLike[str], kind: FileKind, expected: str) -> str:
    """Return one line: that the file at `path` is of `kind`, what was expected, and what reads that kind."""
    reader = f"; {kind.reader}" if kind.reader else ""
    return f"{os.fspath(path)}: is {kind.words}, expected {expected}{reader}"


def _of_gzip(data: bytes) -> FileKind | None:
    """Return the kind of a gzipped file by its first bytes; None if they do not inflate."""
    try:
        head = zlib.decompressobj(wbits=31).decompress(data[:_HEAD_BYTES], _HEAD_BYTES)
    except zlib.error:
        return None
    inner = kind_of_bytes(head) if head and not head.startswith(GZIP_MAGIC) else None
    if inner is None:
        return FileKind("gzip", "gzipped", _UNPACK)
    if inner is _CHAKRA:
        return FileKind("gzip:chakra", "a gzipped Chakra trace", _CHAKRA.reader)
    reader = f"unpack it: {inner.reader}" if inner.reader and inner.reader != _UNPACK else inner.reader
    return FileKind(f"gzip:{inner.key}", f"gzipped: {inner.words}", reader)


def _is_chakra(head: bytes) -> bool:
    """Return whether the head begins with a frame of a GlobalMetadata: length, then none, a version or an attribute."""
    length = at = 0
    for at, byte in enumerate(head[:_LONGEST_LENGTH_BYTES]):
        length |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            break
    else:
        return False
    body = head[at + 1 : at + 1 + length]
    if length == 0:
        return len(head) > 2 and head[2:3] in {b"\x08", b"\x12"}  # a node's id or name behind its length
    if len(body) < 2 or body[0] not in {0x0A, 0x12}:
        return False
    inner = body[1] & 0x7F | (body[2] << 7 if body[1] >= 0x80 and len(body) > 2 else 0)
    return inner + 2 <= length


def _text(head: bytes) -> str | None:
    """Return the head as text, without a character that the cut has split; None if it is not text."""
    for cut in range(4 if len(head) == _HEAD_BYTES else 1):
        try:
            text = head[: len(head) - cut].decode("utf-8-sig")
        except UnicodeDecodeError:
            continue
        printable = all(c.isprintable() or c in "\t\n\r\x1b" for c in text[:4096])
        return text if printable else None
    return None
