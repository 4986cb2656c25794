"""Work of situations: tiny models by their plans, served requests, traffic, and traces of collectives alone."""

from nadi import et

SIZES = (4, 8, 16, 32, 64)
"""Numbers of GPUs for which there are traces of collectives."""
MODEL = """
source = "tests"
layers = 2
hidden = 256
heads = 8
vocab = 1024
sequence = 128
global_batch = 8
"""
EXPERTS = """
[experts]
count = 8
top_k = 2
ffn = 256
"""
KINDS = ("ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "ALL_TO_ALL", "BROADCAST")
COLLECTIVE_BYTES = 1 << 18


def write_work(folder):
    """Write the models, and the traces of collectives, that the jobs of `job_of` name."""
    (folder / "dense.toml").write_text(MODEL)
    (folder / "experts.toml").write_text(MODEL + EXPERTS)
    for npus in SIZES:
        own = folder / f"collectives{npus}"
        own.mkdir()
        for npu in range(npus):
            et.write_trace(own / f"trace.{npu}.et", et.metadata(), _collectives(npu, npus))


def _collectives(npu, npus):
    """Return the nodes of an NPU: a collective of each kind after the one before, and a message to the next NPU."""
    after, before = (npu + 1) % npus, (npu - 1) % npus
    nodes = [et.comp_node(1, "begin", duration_micros=2)]
    for number, kind in enumerate(KINDS, start=2):
        comm_type = et.CollectiveCommType[kind]
        nodes.append(et.coll_node(number, kind.lower(), comm_type, COLLECTIVE_BYTES, deps=[number - 1]))
    last = nodes[-1].id
    return [
        *nodes,
        et.send_node(last + 1, "send", npu, after, 50_000, deps=[1]),
        et.recv_node(last + 2, "receive", before, npu, 50_000, deps=[1]),
    ]


def job_of(work, gpus, folder):
    """Return the sections of a run file that define work, one of the factors' values or "traffic", on some GPUs."""
    tp = min(8, gpus)
    rest = gpus // tp
    dense, experts = str(folder / "dense.toml"), str(folder / "experts.toml")
    if work == "dense":
        return {"workload": {"model": dense, "plan": f"tp{tp},dp{rest},gb{rest},sp,zero1"}}
    if work == "experts":
        return {"workload": {"model": experts, "plan": f"ep{tp},dp{gpus},gb{gpus}"}}
    if work == "fsdp":
        return {"workload": {"model": dense, "plan": f"dp{gpus},gb{gpus}", "framework": "fsdp"}}
    if work == "serving":
        return {
            "workload": {"model": dense, "plan": f"tp{tp // 2},dp{gpus // (tp // 2)}", "framework": "inference"},
            "serving": {"batch": 2, "prompt": "32", "generate": "3"},
        }
    if work == "traffic":
        return {"workload": {"gpus": gpus, "traffic": {"sizes": "64KiB", "load": 0.3, "duration": "100us"}}}
    return {"workload": {"traces": f"{folder}/collectives{gpus}/trace"}}
