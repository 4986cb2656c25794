"""Damaged files of other simulators, each made from a seed: options of their commands and the files that they name."""

import json
import re
import shutil

from nadi import et
from tests.damaged.documents import damage_document
from tests.et.mutations import changed_bytes, changed_text
from tests.topologies.test_simulator_files import SMALL_TREE

COLL = et.CollectiveCommType
_SYSTEM = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 2,
    "all-reduce-implementation": ["ring"],
    "all-gather-implementation": ["direct2"],
    "reduce-scatter-implementation": ["halvingDoubling"],
    "all-to-all-implementation": ["oneDirect"],
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600.5,
    "roofline-enabled": 1,
    "peak-perf": 900,
    "boost-mode": 0,
    "L": 1,
}
_TWO = {
    key: [*names, "ring"] for key, names in _SYSTEM.items() if key.endswith("-implementation") and "all-to" not in key
}
_NETWORK = "topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50.0 ]  # GB/s\nlatency: [ 500.0 ]  # ns\n"
_NETWORK_2D = {"topology": ["Ring", "Switch"], "npus_count": [2, 2], "bandwidth": [50.0, 25], "latency": [500.0, 1e3]}
_MEMORY = {
    "memory-type": "PER_NODE_MEMORY_EXPANSION",
    "remote-mem-latency": 100,
    "remote-mem-bw": 64,
    "num-nodes": 2,
    "num-npus-per-node": 2,
}
_CONFIG = """ENABLE_QCN 1
USE_DYNAMIC_PFC_THRESHOLD 1
PACKET_PAYLOAD_SIZE 1000
TOPOLOGY_FILE physical.txt
CC_MODE 1
ALPHA_RESUME_INTERVAL 1
RATE_DECREASE_INTERVAL 4
RP_TIMER 900 {for DCQCN: the interval of rate increase}
EWMA_GAIN 0.00390625
FAST_RECOVERY_TIMES 1
RATE_AI 50Mb/s
RATE_HAI 100Mb/s
MIN_RATE 100Mb/s
ERROR_RATE_PER_LINK 0.0000
L2_ACK_INTERVAL 1
HAS_WIN 1
LINK_DOWN 0 0 0
KMAX_MAP 2 100000000000 1600 400000000000 3200
KMIN_MAP 2 100000000000 400 400000000000 800
PMAX_MAP 2 100000000000 0.2 400000000000 0.2
BUFFER_SIZE 32
"""
_PHYSICAL = "7 2 6\n4 5\n0 4 400Gbps 0.0005ms 0\n1 4 400Gbps 0.0005ms 0\n2 5 400Gbps 0.0005ms 0\n3 5 400Gbps 1us 0\n"
_PHYSICAL = _PHYSICAL.replace("7 2 6", "6 2 6") + "4 5 100Gbps 0.001ms 0\n4 5 100Gbps 0.001ms 0\n"
_JSON_CONFIG = {
    "files": {"topology_file": "{{TOPOLOGY_DIR}}/physical.txt", "flow_file": "flow.txt"},
    "switch": {"enable_qcn": True, "buffer_size": 32},
    "packet": {"payload_size": 1000, "error_rate_per_link": 0.0},
    "congestion_control": {"cc_mode": 3, "rate_ai": "50Mb/s", "u_target": 0.95, "has_win": 1},
    "link": {"link_down_time": 0, "link_down_a": 0, "link_down_b": 0},
    "ecn": {
        "kmax_map": {"100000000000": 1600, "400000000000": 3200},
        "kmin_map": {"100000000000": 400, "400000000000": 800},
        "pmax_map": {"100000000000": 0.2, "400000000000": 0.2},
    },
}
_TEXTS = {
    "analytical": {"network.yml": _NETWORK, "system.json": _SYSTEM},
    "two dimensions": {"network.yml": _NETWORK_2D, "system.json": _SYSTEM | _TWO},
    "htsim": {"network.yml": _NETWORK_2D, "tree.topo": SMALL_TREE, "system.json": _SYSTEM | _TWO},
    "ns-3": {
        "network.yml": _CONFIG,
        "physical.txt": _PHYSICAL,
        "logical.json": {"logical-dims": ["4"]},
        "system.json": _SYSTEM,
    },
    "ns-3 in JSON": {
        "network.yml": _JSON_CONFIG,
        "physical.txt": _PHYSICAL,
        "logical.json": {"logical-dims": ["2", "2"]},
        "system.json": _SYSTEM | _TWO,
    },
}
_COMMON = {"memory.json": _MEMORY, "groups.json": {"1": [0, 1], "2": [2, 3]}}


def make_astra_sim(folder):
    """Write the traces of four NPUs once: collectives, one of a group, computation and remote memory."""
    folder.mkdir()
    for npu in range(4):
        nodes = [
            et.comp_node(1, "gemm", num_ops=10**6, tensor_size=10**4),
            et.mem_node(2, "load", et.NodeType.MEM_LOAD_NODE, 4096, tensor_loc=1),
            et.coll_node(3, "all", COLL.ALL_REDUCE, 1 << 14, deps=[1, 2]),
            et.coll_node(4, "gather", COLL.ALL_GATHER, 1 << 12, deps=[3]),
            et.coll_node(5, "own", COLL.ALL_REDUCE, 1 << 12, pg_name=str(1 + npu // 2), deps=[4]),
            et.coll_node(6, "to all", COLL.ALL_TO_ALL, 1 << 12, deps=[5]),
        ]
        et.write_trace(folder / f"work.{npu}.et", et.metadata(), nodes)


def other_number(rng, text):
    """Return the bytes of a text with one number replaced by an ordinary one, so that most files stay valid."""
    places = list(re.finditer(r"\d+(\.\d+)?", text))
    if not places:
        return text.encode()
    place = rng.choice(places)
    number = rng.choice((0, 1, 2, 3, 4, 5, 8, 10, 16, 64, 100, 0.5, 1000, 25_000, 10**6, 10**9))
    return (text[: place.start()] + str(number) + text[place.end() :]).encode()


def damaged_text(rng, text):
    """Return the bytes of a text with a changed number, words or bytes, or of a JSON document with other values."""
    how = rng.random()
    if text.startswith("{") and how < 0.6:
        document = json.loads(text)
        damage_document(rng, document)
        return json.dumps(document).encode()
    if how < 0.25:
        return _exchanged_words(rng, text).encode()
    data = other_number(rng, text) if how < 0.5 else changed_text(rng, text)
    return changed_bytes(rng, text.encode()) if how > 0.9 else data


def _exchanged_words(rng, text):
    """Return a text with a few words in each other's places, which are words between white space."""
    words = re.split(r"(\s+)", text)
    for _ in range(rng.choice((1, 2, 3))):
        a, b = (2 * rng.randrange(len(words) // 2 + 1) for _ in range(2))
        words[a] = words[b]
    return "".join(words)


def astra_sim(rng, traces, folder):
    """Return what was changed, and arguments of `nadi astra-sim`.

    Args:
        rng: Source of the choices.
        traces: Folder that `make_astra_sim` filled.
        folder: Empty folder for the files.
    """
    name = rng.choice(sorted(_TEXTS))
    files = _TEXTS[name] | _COMMON
    shutil.copytree(traces, folder / "traces")
    chosen = rng.choice([*files, *_TEXTS[name]])
    what = f"{name}: {chosen}"
    for file, content in files.items():
        damaged = json.loads(json.dumps(content)) if isinstance(content, dict) else content
        if file == chosen and isinstance(content, dict) and rng.random() < 0.7:
            what += f": {damage_document(rng, damaged)}"
        text = damaged if isinstance(damaged, str) else json.dumps(damaged, indent=rng.choice((None, 2)))
        data = text.encode()
        if file == chosen and damaged == content:
            data = damaged_text(rng, text)
        (folder / file).write_bytes(data)
    if rng.random() < 0.05:
        trace = folder / "traces" / f"work.{rng.randrange(4)}.et"
        trace.write_bytes(changed_bytes(rng, trace.read_bytes()))
        what += "; a trace"
    command = [
        f"--workload-configuration={folder}/traces/work",
        f"--system-configuration={folder}/system.json",
        f"--network-configuration={folder}/network.yml",
        f"--remote-memory-configuration={folder}/memory.json",
        f"--comm-group-configuration={folder}/groups.json",
    ]
    command += [f"--logical-topology-configuration={folder}/logical.json"] * ("logical.json" in files)
    command += [f"--write={folder}/out"] * (rng.random() < 0.3)
    command += ["--htsim_opts", "-topo", f"{folder}/tree.topo", "-sub", "2"] * ("tree.topo" in files)
    return what, ["astra-sim", *command]
