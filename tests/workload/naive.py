"""The same program, built the slow way: traces as lists of dicts, one answer per NPU as plain values."""

import heapq

from nadi import et
from nadi.workload import collectives
from nadi.workload.collectives.schedules.sends import unpack
from nadi.workload.kinds import KINDS

BARRIER = int(et.CollectiveCommType.BARRIER)
KIND_NAMES = {**dict(enumerate(KINDS[:8])), 8: "reduce-scatter", BARRIER: "barrier"}


def message(npu, node):
    """A protobuf node of {id, what, deps, ...}."""
    what, deps = node["what"], node["deps"]
    if what == "comp":
        return et.comp_node(
            node["id"], "c", duration_micros=node["micros"], is_cpu_op=node.get("cpu", False), deps=deps
        )
    if what == "mem":
        made = et.mem_node(node["id"], "m", et.NodeType.MEM_LOAD_NODE, 64, deps=deps)
        made.duration_micros = node["micros"]
        return made
    if what == "coll":
        return et.coll_node(node["id"], "x", node["type"], node["size"], pg_name=node["group"], deps=deps)
    ends = (npu, node["peer"]) if what == "send" else (node["peer"], npu)
    make = et.send_node if what == "send" else et.recv_node
    return make(node["id"], what, *ends, node["size"], node["tag"], deps=deps)


def table(npu, nodes):
    return et.table_of(et.metadata(), [message(npu, node) for node in nodes], f"t.{npu}.et")


def order(nodes):
    """Rows in topological order, least first."""
    row = {node["id"]: r for r, node in enumerate(nodes)}
    waits = [{row[d] for d in node["deps"]} for node in nodes]
    ready = [r for r, w in enumerate(waits) if not w]
    done = []
    while ready:
        r = heapq.heappop(ready)
        done.append(r)
        for other, w in enumerate(waits):
            if r in w:
                w.remove(r)
                if not w:
                    heapq.heappush(ready, other)
    return done


def expected(npu, nodes, npus, groups):
    """What the NPU does, by row."""
    row = {node["id"]: r for r, node in enumerate(nodes)}
    seen, result = {}, [None] * len(nodes)
    for r in order(nodes):
        node = nodes[r]
        said = {"parents": len(set(node["deps"]))}
        said["children"] = sorted(c for c, other in enumerate(nodes) if r in {row[d] for d in other["deps"]})
        if node["what"] in {"comp", "mem"}:
            kind, lane = (2, 2) if node["what"] == "mem" else (1, 0 if node.get("cpu") else 1)
            said |= {"kind": kind, "lane": lane, "ps": node["micros"] * 10**6}
        elif node["what"] == "coll":
            members = groups.get(node["group"], tuple(range(npus)))
            kind = KIND_NAMES[node["type"]]
            factor = {"all-gather": len(members), "gather": len(members), "barrier": 0}.get(kind, 1)
            plan = None
            if len(members) > 1:
                plan = (len(members), collectives.plan(kind, collectives.default_algorithm(kind), len(members)).chunks)
            said |= {"kind": 5, "bytes": factor * node["size"], "members": members, "me": members.index(npu)}
            said |= {"schedule": plan, "seq": seen.setdefault(("coll", node["group"]), 0)}
            said |= {"collective": kind, "name": node["group"]}
            seen["coll", node["group"]] += 1
        else:
            key = (node["what"], node["peer"], node["tag"])
            said |= {"kind": 3 if node["what"] == "send" else 4, "bytes": node["size"], "peer": node["peer"]}
            said |= {"tag": node["tag"], "seq": seen.setdefault(key, 0)}
            seen[key] += 1
        result[r] = said
    return result


def found(program, npu):
    """What the program says that an NPU does, in the words of `expected`."""
    t = int(program.trace_of_npu[npu])
    begin, end = program.trace_ptr[t : t + 2].tolist()
    result = []
    for r in range(begin, end):
        kind = int(program.node_kind[r])
        said = {"kind": kind, "parents": int(program.node_deps[r])}
        said["children"] = program.child[program.child_ptr[r] : program.child_ptr[r + 1]].tolist()
        if kind in {1, 2}:
            said |= {"lane": int(program.node_lane[r]), "ps": int(program.node_duration_ps[r])}
        elif kind == 5:
            slot = int(program.slot_ptr[npu]) + int(program.node_group[r])
            group = int(program.slot_group[slot])
            members = program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]].tolist()
            s = int(program.node_schedule[r])
            plan = None if s < 0 else (int(program.schedules.members[s]), int(program.schedules.chunks[s]))
            said |= {"bytes": int(program.node_bytes[r]), "members": tuple(members), "schedule": plan}
            said |= {"me": int(program.slot_member[slot]), "seq": int(program.node_seq[r])}
            said |= {"collective": KINDS[program.node_collective[r]], "name": program.group_names[group]}
        else:
            said |= {"bytes": int(program.node_bytes[r]), "peer": npu + int(program.node_peer[r])}
            said |= {"tag": int(program.node_tag[r]), "seq": int(program.node_seq[r])}
        assert kind == 5 or (program.node_collective[r], program.node_uneven[r]) == (-1, False)
        result.append(said)
    return result


def check_lists(program):
    """coll_* and recv_* list exactly the rows that they should, in order."""
    for t in range(len(program.trace_ptr) - 1):
        begin, end = program.trace_ptr[t : t + 2].tolist()
        for slot in range(program.trace_slot_ptr[t], program.trace_slot_ptr[t + 1]):
            rows = program.coll_node[program.coll_ptr[slot] : program.coll_ptr[slot + 1]] + begin
            assert program.node_seq[rows].tolist() == list(range(len(rows)))
            own = slot - program.trace_slot_ptr[t]
            is_own = (program.node_kind[begin:end] == 5) & (program.node_group[begin:end] == own)
            assert sorted(rows.tolist()) == (begin + is_own.nonzero()[0]).tolist()
        entries = range(program.recv_ptr[t], program.recv_ptr[t + 1])
        keys = [int(program.recv_key[i]) for i in entries]
        assert keys == sorted(set(keys))
        for i in entries:
            row = begin + int(program.recv_node[i])
            peer, tag, seq = (int(program[f][row]) for f in (NODE_PEER, NODE_TAG, NODE_SEQ))
            key = ((peer + 2**19) << 44) | (tag << 20) | seq
            assert keys[i - entries.start] == (key + 2**63) % 2**64 - 2**63
        assert len(entries) == (program.node_kind[begin:end] == 4).sum()
    for index in range(len(program.schedules.members)):
        unpack(program.schedules, index)


NODE_PEER, NODE_TAG, NODE_SEQ = 7, 8, 9
