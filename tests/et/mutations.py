"""Mutated trace files, all from a seed: 10,000 of them are tried by `python -m tests.et.fuzz_files`.

Each file is a good one with a few changes: of its bytes before or after it is gzipped, of words of its text,
or of fields of its nodes. It must be read rightly or refused in one line: `tried` says what else has happened.
"""

import contextlib
import gzip
import io
import random
import re
import shutil
import time
from pathlib import Path

from google.protobuf import json_format

from nadi import et
from nadi.cli.main import main
from nadi.et.formats import formats
from nadi.et.framing import frame
from nadi.et.schema import Node
from tests.et.parents import parents_of

LONGEST_S = 20
_EXTREMES = [0, 1, 2, -1, 7, 8, 255, 2**24, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
_WORDS = ["null", "true", "[]", "{}", '""', "-1", "1e400", "NaN", "Infinity", "9" * 400, "[" * 300, '"\\ud800"', "\x00"]
_LAYERS = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 all_gpus: 4 "
_LAYERS += """checkpoints: 1 0 checkpoint_initiates: 1 1
2
a -1 5000 ALLREDUCE 65536 5000 ALLTOALL_EP 65536 4000 ALLREDUCE 131072 0
b -1 7000 ALLGATHER 65536 7000 REDUCESCATTER 65536 6000 ALLREDUCE_DP_EP 131072 9
"""
_GOAL = """num_ranks 2
rank 0 {
a: calc 1500 cpu 0
b: send 64b to 1 tag 7 cpu 0 nic 0
b requires a
}
rank 1 {
c: recv 64b from 0 tag 7
d: calc 10
d irequires c
}
"""


def good_nodes():
    """One of each kind of node, and what real traces have beside."""
    return [
        et.group_node(1, "groups", "7", [0, 2]),
        et.mem_node(2, "load", et.NodeType.MEM_LOAD_NODE, 4096, tensor_loc=1, ctrl_deps=[1]),
        et.comp_node(3, "mat", duration_micros=12, num_ops=1 << 40, tensor_size=1 << 33, deps=[2]),
        et.coll_node(4, "g", et.CollectiveCommType.ALL_REDUCE, 1 << 20, pg_name="7", comm_priority=3, deps=[3]),
        et.coll_node(5, "u", et.CollectiveCommType.ALL_TO_ALL, 30, in_split_size=[10, 20], out_split_size=[5, 5]),
        et.send_node(6, "to 1", 0, 1, 65536, 9, deps=[3]),
        et.recv_node(7, "from 1", 1, 0, 65536, 9, deps=[3], ctrl_deps=[6]),
        et.comp_node(8, "op", duration_micros=1, attrs=[et.attribute("x", "double_list", [0.5])], deps=[4, 5, 6, 7]),
    ]


def of_seed(seed):
    """A mutated file: the end of its name, and its bytes."""
    rng = random.Random(seed)  # noqa: S311 - examples, no secrets
    kind = rng.choice(("et", "et", "et", "nodes", "nodes", "json", "json", "txt", "goal"))
    if kind == "nodes":
        nodes = good_nodes()
        for _ in range(rng.randint(1, 4)):
            _change_node(rng, nodes)
        data = b"".join(frame(m.SerializeToString()) for m in (et.metadata(), *nodes))
    elif kind == "et":
        data = b"".join(frame(m.SerializeToString()) for m in (et.metadata(), *good_nodes()))
        data = changed_bytes(rng, data)
    elif kind == "json":
        text = "\n".join(json_format.MessageToJson(m) for m in (et.metadata(), *good_nodes()))
        data = changed_text(rng, text)
    else:
        data = changed_text(rng, _LAYERS if kind == "txt" else _GOAL)
    name = "a.0." + ("et" if kind == "nodes" else kind)
    if rng.random() < 0.3:
        data = gzip.compress(data, mtime=0)
        name += ".gz"
        if rng.random() < 0.5:
            data = changed_bytes(rng, data)
    return name, data


def changed_bytes(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 6))):
        at, other = (rng.randrange(len(data) + 1) for _ in range(2))
        size = rng.choice((1, 1, 1, 2, 5, 40))
        how = rng.randrange(7)
        if how == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            data[at : at + size] = rng.randbytes(size)
        elif how == 2:
            del data[at : at + size]
        elif how == 3:
            data[at:at] = data[other : other + size]
        elif how == 4:
            data[at : at + size] = b"\xff" * rng.randint(1, 10)
        elif how == 5:
            del data[at:]
        else:
            data[at:at] = b"\x00" * size
        if not data:
            return b""
    return bytes(data)


def changed_text(rng, text):
    """Text with other numbers and words, less or more of it; now and then broken as bytes are."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        places = list(re.finditer(r"-?\d+|[A-Za-z_]\w*|[^\w\s]", text))
        if not places:
            break
        place, other = rng.choice(places), rng.choice(places)
        begin, end = min(place.start(), other.start()), max(place.end(), other.end())
        how = rng.randrange(6)
        if how == 0:
            text = text[: place.start()] + str(rng.choice(_EXTREMES)) + text[place.end() :]
        elif how == 1:
            text = text[: place.start()] + rng.choice(_WORDS) + text[place.end() :]
        elif how == 2:
            text = text[: place.start()] + other[0] + text[place.end() :]
        elif how == 3:
            text = text[:begin] + text[end:]
        elif how == 4:
            text = text[:end] + text[begin:]
        else:
            text = text[:end]
    data = text.encode("utf-8", "surrogatepass")
    return changed_bytes(rng, data) if rng.random() < 0.2 and data else data


def _change_node(rng, nodes):
    """Another id, parent, type, time or attribute of a node."""
    node = rng.choice(nodes)
    how = rng.randrange(7)
    number = rng.choice(_EXTREMES) % 2**64
    if how == 0:
        node.id = rng.choice((number, rng.choice(nodes).id))
    elif how == 1:
        (node.data_deps if rng.random() < 0.5 else node.ctrl_deps).append(rng.choice((number, rng.choice(nodes).id)))
    elif how == 2:
        node.type = rng.randint(0, 9)
    elif how == 3:
        node.duration_micros = number
    elif how == 4:
        nodes.append(Node.FromString(node.SerializeToString()))
    elif how == 5 and node.attr:
        del node.attr[rng.randrange(len(node.attr))]
    elif node.attr:
        name = rng.choice(node.attr).name
        kind = rng.choice(("int64", "int32", "uint64", "double", "string", "bool", "int64_list", "bytes"))
        value = {"double": rng.choice((1.5, 4.0, float("nan"))), "string": "[1, 2]", "bytes": b"\xff"}.get(kind)
        if value is None:
            value = number % 2**31
        node.attr.append(
            et.attribute(name, kind, [value] if kind.endswith("list") else bool(value) if kind == "bool" else value)
        )


def tried(seed, folder):
    """What was wrong with how a mutated file was treated, "" if nothing; and whether it was read."""
    name, data = of_seed(seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    file = folder / name
    file.write_bytes(data)
    is_trace = ".et" in name
    begin = time.process_time()
    complaints = [_reading(file)] if is_trace else []
    forced = sorted(name for name, module in formats().items() if hasattr(module, "read"))
    out = folder / "out"
    runs = [["convert", file, "-o", out, "--to", ("json", "goal", "chakra")[seed % 3]]]
    if seed % 4 == 0:
        runs[0] = ["convert", file, "-o", out, "--from", forced[seed // 4 % len(forced)]]
    if is_trace:
        runs.append(["check", file, "--fix", "-o", folder / "mended"] if seed % 2 else ["check", file, "--json"])
    was_read = False
    for command, *arguments in runs:
        code, said, err = _command("trace", command, *arguments)
        if code not in {0, 2} or "Traceback" in err:
            complaints.append(f"{command}: exit code {code}: {err}{said[-300:]}")
        elif command == "convert" and code == 2 and (err.count("\n") != 1 or out.exists()):
            complaints.append(f"convert: more than a line, or something half-written is left: {err}")
        elif arguments[-1] == "--json" and not said.startswith("{"):
            complaints.append(f"check: {err}")
        was_read |= command == "convert" and code == 0
    took_s = time.process_time() - begin
    if took_s > LONGEST_S:
        complaints.append(f"took {took_s:.1f} s of CPU")
    return "; ".join(complaint for complaint in complaints if complaint), was_read


def _command(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def _reading(file):
    """Whether a trace that is read says what protobuf reads in its messages."""
    try:
        table = et.read_trace(file)
    except et.TraceError as error:
        return "" if "\n" not in str(error) and str(error).startswith(str(file)) else f"read_trace: {error!r}"
    _, nodes = et.read_messages(file)
    if table.node_id.tolist() != [node.id for node in nodes] or list(table.names) != [node.name for node in nodes]:
        return "read_trace: other nodes than protobuf reads"
    if table.duration_micros.tolist() != [node.duration_micros for node in nodes]:
        return "read_trace: other durations than protobuf reads"
    for row, node in enumerate(nodes):
        parents = {int(table.node_id[p]) for p in parents_of(table, row)}
        if parents != {*node.data_deps, *node.ctrl_deps}:
            return f"read_trace: other parents of node {node.id} than protobuf reads"
        sizes = [a for a in node.attr if a.name == "comm_size"]
        if len(sizes) == 1 and sizes[0].HasField("int64_val") and int(table.comm_size[row]) != sizes[0].int64_val:
            return f"read_trace: another comm_size of node {node.id} than protobuf reads"
    return ""


def folder_for(parent):
    """A folder whose files are made anew for each seed."""
    return Path(parent) / "fuzzed"
