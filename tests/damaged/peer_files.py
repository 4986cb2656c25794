"""Damaged files of SimAI, htsim and ATLAHS, and of what describes fabrics, each made from a seed."""

import json

from tests.damaged.peers import damaged_text
from tests.et.formats.test_goal_binary import RANKS, TEXT, packed
from tests.et.mutations import changed_bytes
from tests.topologies.test_graphs import NEW
from tests.topologies.test_servers import MATRIX, PAIRS, PARTIAL, xml
from tests.topologies.test_simulator_files import SMALL_TREE
from tests.workload.test_mscclpp import all_pairs, packets, read_reduce

_WORKLOAD = """HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 2 vpp: 1 ga: 2 all_gpus: 4 \
pp_comm: 4096 checkpoints: 1 0 checkpoint_initiates: 1 1
4
grad_gather -1 1 NONE 0 1 NONE 0 1 ALLGATHER 8192 100
embedding_layer -1 1000 ALLREDUCE 4096 1 NONE 0 1 NONE 0 100
attention_layer -1 2000 ALLREDUCE 4096 2000 NONE 0 2000 NONE 0 100
moe -1 2000 ALLTOALL_EP 4096 2000 ALLTOALL 4096 2000 REDUCESCATTER 4096 100
"""
_NET = "6 2 0 2 5 H100\n4 5\n0 4 400Gbps 0.0005ms 0\n1 4 400Gbps 0.0005ms 0\n2 5 400Gbps 0.0005ms 0\n"
_NET += "3 5 400Gbps 1us 0\n4 5 100Gbps 0.001ms 0\n"
_CONF = """ENABLE_QCN 1
USE_DYNAMIC_PFC_THRESHOLD 1
PACKET_PAYLOAD_SIZE 9000
SIMULATOR_STOP_TIME 40000000000000.00
CC_MODE 1
RP_TIMER 900
EWMA_GAIN 0.00390625
RATE_AI 50Mb/s
MIN_RATE 100Mb/s
ERROR_RATE_PER_LINK 0.0000
L2_ACK_INTERVAL 1
HAS_WIN 1
GLOBAL_T 0
VAR_WIN 1
U_TARGET 0.95
LINK_DOWN 0 0 0
KMAX_MAP 2 100000000000 1600 400000000000 3200
KMIN_MAP 2 100000000000 400 400000000000 800
PMAX_MAP 2 100000000000 0.2 400000000000 0.2
BUFFER_SIZE 32
"""
_BUSBW = "test\nTP:\n  allreduce,: 300  # GB/s\n  allgather,: 280\n  reducescatter,: 280\n  alltoall,: 230\nDP:\n"
_BUSBW += "  allgather,: 380\n  reducescatter,: 380\nEP:\n  alltoall,: 80\nPP:\n  busbw: 47.5\n"
_MATRIX = """Nodes 4
Connections 4
Triggers 2
Failures 0
0->1 id 1 start 0 size 20000 send_done_trigger 1
1->2 id 2 start 1000000 size 20000 recv_done_trigger 2
2->3 id 3 trigger 1 size 20000
3->0 id 4 trigger 2 size 20000
trigger id 1 oneshot
trigger id 2 barrier count 1
"""
_FABRICS = {
    "a.xml": PARTIAL,
    "b.xml": PAIRS,
    "smi.txt": MATRIX,
    "infra.yaml": NEW,
    "net": _NET,
    "tree.topo": SMALL_TREE,
    "rccl.xml": xml(4, count=2, ring=True),
}
_FLOWS = "2\n0 3 3 100 20000 2\n1 2 3 100 20000 2.00001\n\nSRC DST PRIORITY PORT BYTES SECONDS\n"
_STAR = "5 1 4\n2\n2 0 100Gbps 1us 0\n2 1 100Gbps 1us 0\n2 3 25Gbps 1us 0\n2 4 100Gbps 1us 0\n\nnodes switches links\n"
_RUN = '[workload.traffic]\nfile = "flow.txt"\n[topology]\nspec = "simai:path=FOLDER/star.txt"\n'
_FOR_PLANS = ("-t", "switch:npus=3,rate=100Gbps", "--sizes", "1KiB", "--algorithm", "custom:file=plan.json")
_COMMANDS = {
    "simai": [
        ({"w.txt": _WORKLOAD, "busbw.yaml": _BUSBW}, ["simai", "-w", "w.txt", "-busbw", "busbw.yaml"]),
        (
            {"net": _NET, "SimAI.conf": _CONF},
            ["simai", "-w", "../simai.txt", "-n", "net", "-c", "SimAI.conf", "-g", "4"],
        ),
    ],
    "htsim": [
        (
            {"x.cm": _MATRIX, "tree.topo": SMALL_TREE},
            ["htsim", "-tm", "x.cm", "-topo", "tree.topo", "-strat", "ecmp_host", "-end", "100"],
        ),
        ({"x.goal": TEXT}, ["htsim", "-goal", "x.goal", "-nodes", "16", "-end", "100"]),
        ({"x.bin": packed(RANKS)}, ["htsim", "-goal", "x.bin", "-nodes", "16", "-end", "100"]),
        ({"x.bin": packed(RANKS)}, ["trace", "convert", "x.bin", "-o", "out"]),
    ],
    "mscclpp": [
        ({"plan.json": json.dumps(made, indent=1)}, ["collective", kind, *_FOR_PLANS])
        for made, kind in ((read_reduce(3), "all-reduce"), (all_pairs(3), "all-gather"), (packets(3), "all-reduce"))
    ],
    "fabric": [({file: text}, ["topology", "show", file]) for file, text in _FABRICS.items()]
    + [
        ({file: _FABRICS[file]}, ["topology", "show", f"{name}:path={file},servers=2"])
        for name, file in (("nccl", "a.xml"), ("nvidia-smi", "smi.txt"))
    ]
    + [({"flow.txt": _FLOWS, "star.txt": _STAR, "run.toml": _RUN}, ["run", "run.toml", "-q"])],
}


def peer_files(rng, kind, folder):
    """Return what was changed, and arguments of `nadi`.

    Args:
        rng: Source of the choices.
        kind: "simai", "htsim", "mscclpp" or "fabric".
        folder: Empty folder for the files.
    """
    files, command = rng.choice(_COMMANDS[kind])
    (folder / "simai.txt").write_text(_WORKLOAD.replace("pp: 2", "pp: 1").replace("all_gpus: 4 ", ""))
    chosen = rng.choice(sorted(files))
    for file, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        if file == chosen and isinstance(content, bytes):
            data = changed_bytes(rng, data)
        elif file == chosen:
            data = damaged_text(rng, content)
        (folder / file).write_bytes(data.replace(b"FOLDER", str(folder).encode()))
    places = {*files, "out"}
    words = [f"{folder}/{word}" if word in places else word for word in command]
    words = [word.replace("file=plan", f"file={folder}/plan").replace("path=", f"path={folder}/") for word in words]
    words = [f"{folder}/simai.txt" if word == "../simai.txt" else word for word in words]
    return f"{command[0]}: {chosen}", words
