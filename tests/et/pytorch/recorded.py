"""Small traces as PyTorch writes them, made by hand."""

import json


def op(name, start, end, thread=1, rf_id=0, category="cpu_op", **args):
    said = args | ({"Record function id": rf_id} if rf_id else {})
    event = {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": thread}
    return event | {"ts": start, "dur": end - start, "args": said}


def call(name, start, end, correlation, thread=1):
    args = {"correlation": correlation, "External id": correlation}
    return op(name, start, end, thread, category="cuda_runtime", **args)


def kernel(name, start, end, correlation, stream=7, category="kernel"):
    return op(name, start, end, stream, category=category, stream=stream, correlation=correlation)


def nccl_kernel(start, end, correlation, stream=20):
    return kernel("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*)", start, end, correlation, stream)


def kineto(events, rank=0, world=1, **head):
    info = {"backend": "nccl", "rank": rank, "world_size": world}
    return {"schemaVersion": 1, "deviceProperties": [], "distributedInfo": info, **head, "traceEvents": events}


def host_node(op_id, name, rf_id, parent=2, inputs=(), types=(), thread=1, **more):
    attributes = {"rf_id": rf_id, "tid": thread, "op_schema": ""} | more
    return {
        "id": op_id,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {"values": list(inputs), "shapes": [], "types": list(types)},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": key, "type": "", "value": value} for key, value in attributes.items()],
    }


def host(nodes, schema="1.1.1-chakra.0.0.4"):
    return {"schema": schema, "pid": 9, "time": "now", "start_ts": 0, "finish_ts": 1, "nodes": nodes}


def written(folder, **documents):
    paths = []
    for name, document in documents.items():
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(json.dumps(document))
    return paths
