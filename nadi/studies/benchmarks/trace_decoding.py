"""Speed of reading trace files, compared with protobuf's parser on the same bytes on the same machine.

Two kinds of files: nodes of `nadi workload megatron` (GPT-3 13B, names and operators), and nodes as Chakra's converter
makes them from PyTorch traces (inputs and outputs as text, eight attributes). Each file is read in a process of its
own, so that its peak memory is that of reading. protobuf (upb) only creates messages for part of the nodes; Nadi's
reader checks all nodes and returns the table.
"""

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from nadi import et, pdes
from nadi.et import Node
from nadi.et.framing import frame, iter_messages
from nadi.inputs.units import MIB
from nadi.launching.installation import code_command
from nadi.launching.progress import NoProgress, Progress
from nadi.pdes import parallel

NAME = "trace"
NODES = 1_000_000
_MODEL, _PLAN, _NODES_OF_MICRO_BATCH = "gpt3-13b", "tp8,mb1,gb{}", 492
_PYTORCH_SHARE = 5  # the PyTorch file has this factor fewer nodes, because Python creates them one at a time
_MAX_PARSED = 50_000  # maximum number of nodes that protobuf parses
_WRITE_BUFFER_BYTES = 1 << 20
"""Write buffer in bytes, as in file copies. Files written in pieces of 8 KiB are read three times slower."""
_SCHEMA = "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"


def run_decoding_bench(progress: Progress | NoProgress, nodes: int = NODES, runs: int = 5) -> dict[str, Any]:
    """Write trace files, one of about `nodes` nodes, and return CPU times of reading each, the minimum of `runs`.

    Args:
        nodes: The approximate number of nodes of each file.
        runs: The number of measurements, whose minimum counts.
        progress: The display that names the current file.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="nadi-bench-") as folder:
        for kind, write in (("megatron", _write_megatron), ("pytorch", _write_pytorch)):
            progress.say(f"writing {kind} nodes")
            path = Path(folder) / f"{kind}.0.et"
            write(path, nodes)
            progress.say(f"reading {path.stat().st_size / MIB:,.0f} MiB")
            rows.append({"kind": kind, "file_bytes": path.stat().st_size, **_measure_in_process(path, runs)})
            path.unlink()
    return {"bench": NAME, "runs": runs, "files": rows}


def measure(path: str, runs: int) -> dict[str, Any]:
    """Measure reading a trace file, best of `runs`, and return metrics; protobuf parses only its first nodes.

    Args:
        path: The trace file to read.
        runs: The number of measurements, whose minimum counts.
    """
    before = parallel.peak_rss_bytes()
    table = et.read_trace(path)
    peak, nodes = parallel.peak_rss_bytes(), len(table)
    # frees the table before reading again, so that timed runs do not pay for memory of two
    del table
    decode_s = min(_cpu_s(lambda: et.read_trace(path)) for _ in range(runs))
    kept_s = min(_cpu_s(lambda: et.read_trace(path, keep_others=True)) for _ in range(runs))
    # without the first message, which is the file's metadata
    messages = [message for (_, message), _ in zip(iter_messages(path), range(_MAX_PARSED + 1), strict=False)][1:]
    parse_s = min(_cpu_s(lambda: [Node.FromString(message) for message in messages]) for _ in range(runs))
    return {
        "nodes": nodes,
        "nodes_per_s": nodes / decode_s,
        "kept_nodes_per_s": nodes / kept_s,
        "protobuf_nodes_per_s": len(messages) / parse_s,
        "ratio": nodes / decode_s / (len(messages) / parse_s),
        "peak_rss_bytes": peak,
        "rss_before_bytes": before,
    }


def _measure_in_process(path: Path, runs: int) -> dict[str, Any]:
    """Return the metrics of `measure` from a fresh process."""
    text = f"import json; from {__name__} import measure; print(json.dumps(measure({str(path)!r}, {runs})))"
    done = subprocess.run(code_command(text), capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        raise pdes.RunError(f"bench {NAME}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    return json.loads(done.stdout)


def _cpu_s(function: Any) -> float:  # noqa: ANN401 - anything that can be called
    """Return the CPU time of a call in seconds."""
    start_s = time.process_time()
    function()
    return time.process_time() - start_s


def _write_megatron(path: Path, num_nodes: int) -> None:
    """Write about this number of nodes into a file: one GPU in a training step of Megatron."""
    from nadi.workload.generators.models import find
    from nadi.workload.generators.training import parallel_plan
    from nadi.workload.generators.training.generator import generate

    plan = parallel_plan(_PLAN.format(max(1, round(num_nodes / _NODES_OF_MICRO_BATCH))))
    et.write_table(path, generate(find(_MODEL), plan, "megatron").traces[0])


def _write_pytorch(path: Path, num_nodes: int) -> None:
    """Write host operations, with a kernel as every third node, a fifth as many nodes as `num_nodes` for speed."""
    rng = np.random.default_rng(1)
    with path.open("wb", _WRITE_BUFFER_BYTES) as file:
        file.write(frame(et.metadata().SerializeToString()))
        for node_id in range(max(1, num_nodes // _PYTORCH_SHARE)):
            file.write(frame(_pytorch_node(node_id, rng).SerializeToString()))


def _pytorch_node(node_id: int, rng: np.random.Generator) -> Any:  # noqa: ANN401 - a message
    """Return a node as Chakra's converter writes it: every third is a kernel, the others are host operations."""
    is_kernel = node_id % 3 == 0
    deps = sorted({max(0, node_id - int(back)) for back in rng.integers(1, 40, 2)} - {node_id})
    host_attributes = [
        et.attribute("rf_id", "int64", node_id + 7),
        et.attribute("fw_parent", "int64", 0),
        et.attribute("seq_id", "int64", -1),
        et.attribute("scope", "int64", 7),
        et.attribute("tid", "int64", 1),
        et.attribute("fw_tid", "int64", 0),
    ]
    attributes = (
        [et.attribute("stream", "int64", 7)]
        if is_kernel
        else [*host_attributes, et.attribute("op_schema", "string", _SCHEMA)]
    )
    name = "ampere_sgemm_128x64_tn" if is_kernel else f"aten::addmm({node_id % 97})"
    node = et.comp_node(node_id, name, duration_micros=int(rng.integers(1, 900)), deps=deps, attrs=attributes)
    node.inputs.values = f"[[{node_id}, {node_id + 1}, 0, 2359296, 4, 'cuda:0'], [{node_id}, 3, 0, 512, 4, 'cuda:0']]"
    node.inputs.shapes, node.inputs.types = "[[32, 512], [512, 512]]", "['Tensor(float)', 'Tensor(float)']"
    node.outputs.values = f"[[{node_id + 2}, {node_id + 3}, 0, 16384, 4, 'cuda:0']]"
    node.outputs.shapes, node.outputs.types = "[[32, 512]]", "['Tensor(float)']"
    return node
