"""Traces made by hand: launches, streams, waits, collectives, clocks, and traces that chakra_trace_link has merged."""

import copy
import json

import numpy as np
import pytest

from nadi import et
from nadi.et.pytorch import convert
from tests.et.parents import names_of_parents
from tests.et.pytorch.recorded import call, host, host_node, kernel, kineto, nccl_kernel, op, written


def names_before(table, name):
    return names_of_parents(table, row_of(table, name))


def row_of(table, name):
    """The node of that name; of a collective the one that carries it out, not the annotation on the host."""
    rows = [row for row, found in enumerate(table.names) if found == name]
    return max(rows, key=lambda row: table.type[row])


def step(events, begin=0, end=200):
    return [op("ProfilerStep#4", begin, end, category="user_annotation"), *events]


def reduced(begin, launch, size=1000):
    """A collective of NCCL's, as PyTorch 2.3 records it, whose kernel has the correlation 900 + begin."""
    said = {"Collective name": "allreduce", "In msg nelems": size, "Out msg nelems": size, "dtype": "Half"}
    said |= {"Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    return [
        op("record_param_comms", begin, begin + 20, **said),
        call("cudaEventRecord", begin + 1, begin + 2, 700 + begin),
        call("cudaStreamWaitEvent", begin + 3, begin + 4, 800 + begin),
        op("nccl:all_reduce", begin + 5, begin + 18, category="user_annotation"),
        call("cudaLaunchKernelExC", launch, launch + 5, 900 + begin),
    ]


def test_streams_launches_and_blocking_calls_become_dependencies(tmp_path):
    events = [
        op("aten::mm", 10, 30),
        call("cudaLaunchKernel", 15, 20, 1),
        kernel("gemm", 22, 60, 1),
        *reduced(40, 50),
        nccl_kernel(62, 90, 940),
        call("cudaStreamWaitEvent", 70, 71, 5),
        op("aten::add", 80, 89),
        call("cudaLaunchKernel", 82, 85, 2),
        kernel("add", 92, 110, 2),
        call("cudaStreamSynchronize", 95, 120, 6),
    ]
    made = convert(written(tmp_path, kineto=kineto(step(events), world=2)))
    table = made.tables[0]
    assert names_before(table, "gemm") == {"cudaLaunchKernel"}
    assert names_before(table, "nccl:all_reduce") >= {"gemm", "cudaLaunchKernelExC"}
    assert names_before(table, "add") >= {"gemm", "nccl:all_reduce", "cudaLaunchKernel"}
    assert "add" in names_before(table, "cudaStreamSynchronize")
    assert table.duration_micros[row_of(table, "cudaStreamSynchronize")] == 10  # what was left when `add` was over
    assert table.duration_micros[row_of(table, "gemm")] == 38
    row = row_of(table, "nccl:all_reduce")
    assert (table.comm_type[row], table.comm_size[row]) == (et.CollectiveCommType.ALL_REDUCE, 2000)
    (rank,) = made.report["ranks"]
    assert (rank["kernels"], rank["linked_kernels"]) == (3, 3)


def test_a_collective_that_runs_beside_compute_is_not_waited_for(tmp_path):
    events = [
        op("aten::mm", 5, 30),
        call("cudaLaunchKernel", 6, 8, 1),
        kernel("gemm", 9, 45, 1),
        *reduced(40, 50),
        nccl_kernel(62, 190, 940),
        op("aten::add", 80, 89),
        call("cudaLaunchKernel", 82, 85, 2),
        kernel("add", 92, 110, 2),
    ]
    table = convert(written(tmp_path, kineto=kineto(step(events), world=2))).tables[0]
    assert "nccl:all_reduce" not in names_before(table, "add")


def test_what_streams_wait_for_is_taken_from_the_trace_where_it_says_so(tmp_path):
    said = {"stream": 9, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 50, "correlation": 51}
    events = [
        op("aten::mm", 5, 60),
        call("cudaLaunchKernel", 6, 8, 1),
        kernel("gemm", 9, 20, 1),
        call("cudaEventRecord", 10, 11, 50),
        call("cudaStreamWaitEvent", 12, 13, 51),
        call("cudaLaunchKernel", 14, 15, 2),
        kernel("copy", 25, 30, 2, stream=9),
        op("Stream Wait Event", 12, 13, 9, category="cuda_sync", **said),
    ]
    made = convert(written(tmp_path, kineto=kineto(step(events))))
    assert "gemm" in names_before(made.tables[0], "copy")
    assert made.report["ranks"][0]["stream_waits_said"] == 1


def two_ranks(late=30, offset=0, **head):
    """Rank 1 comes to its collective so much later; its clock is so much ahead."""
    documents = {}
    for rank, shift in ((0, 0), (1, late)):
        own = [op("aten::mm", 5, 9)]
        for begin in (20, 90):
            start = begin + 20 + shift
            own += [*reduced(begin, begin + 10), nccl_kernel(start, begin + 80, 900 + begin)]
        events = step(own, end=180)
        for event in events:
            event["ts"] += offset * rank
        documents[f"kineto_{rank}"] = kineto(events, rank, 2, **{key: value[rank] for key, value in head.items()})
    return documents


def test_waiting_for_late_ranks_is_taken_out_of_collectives(tmp_path):
    made = convert(written(tmp_path, **two_ranks()))
    for rank, waited in ((0, 30), (1, 0)):
        table = made.tables[rank]
        rows = np.flatnonzero(table.type == et.NodeType.COMM_COLL_NODE)
        assert table.duration_micros[rows].tolist() == [30, 30]
        assert made.report["ranks"][rank]["waited_us"] == 2 * waited


@pytest.mark.parametrize(("hosts", "removed"), [(("a", "b"), -5000), (("a", "a"), 0)])
def test_clocks_of_two_hosts_are_brought_together(tmp_path, hosts, removed):
    made = convert(written(tmp_path, **two_ranks(offset=5000, host_name=hosts)))
    assert [rank["clock_offset_us"] for rank in made.report["ranks"]] == [0, -5000]
    assert [rank["clock_offset_removed_us"] for rank in made.report["ranks"]] == [0, removed]


def test_a_rank_that_begins_later_does_so_in_its_trace(tmp_path):
    documents = two_ranks()
    for event in documents["kineto_1"]["traceEvents"][:2]:
        event["ts"] += 4
    table = convert(written(tmp_path, **documents)).tables[1]
    assert table.duration_micros[row_of(table, "(ranks that begin earlier)")] == 4


def test_operators_are_linked_by_record_function_id_and_kernels_that_are_not_say_why(tmp_path):
    events = step(
        [
            op("aten::mm", 10, 30, rf_id=8),
            call("cudaLaunchKernel", 15, 20, 1),
            kernel("gemm", 22, 60, 1),
            call("cudaLaunchKernel", 35, 36, 2),
            kernel("alone", 62, 70, 2),
            kernel("lost", 72, 80, 3),
        ]
    )
    events = events[1:]  # without a ProfilerStep nothing is around the second launch
    nodes = [host_node(3, "aten::mm", 8)]
    made = convert(written(tmp_path, kineto_0=kineto(events), host_0=host(nodes)))
    (rank,) = made.report["ranks"]
    assert (rank["linked_by"], rank["linked_operators"]) == ("record function id", 1)
    assert [(entry["name"], entry["why"]) for entry in rank["not_linked"]] == [
        ("alone", "no operator is open on thread 1 when cudaLaunchKernel launches it"),
        ("lost", "no launch with correlation 3 in the trace"),
    ]


def test_an_nccl_kernel_of_which_nothing_is_known_is_lost_and_not_an_all_reduce(tmp_path):
    events = step([op("aten::mm", 5, 60), call("cudaLaunchKernel", 6, 8, 1), nccl_kernel(9, 20, 1)])
    made = convert(written(tmp_path, kineto=kineto(events)))
    assert not np.any(made.tables[0].type == et.NodeType.COMM_COLL_NODE)
    assert sum(made.report["ranks"][0]["lost"].values()) == 1
    assert any("1 collectives lost" in note for note in made.notes)


def test_steps_are_chosen(tmp_path):
    events = [op(f"ProfilerStep#{n}", 100 * n, 100 * n + 90, category="user_annotation") for n in (1, 2)]
    events += [op(f"aten::op{n}", 100 * n + 1, 100 * n + 5) for n in (1, 2)]
    paths = written(tmp_path, kineto=kineto(events))
    for chosen, there in (("", ["aten::op2"]), ("1", ["aten::op1"]), ("all", ["aten::op1", "aten::op2"])):
        names = list(convert(paths, chosen).tables[0].names)
        assert [name for name in names if name.startswith("aten::op")] == there
    with pytest.raises(et.TraceError, match="step '7', found steps 1, 2; expected one of these, or all"):
        convert(paths, "7")


def test_two_traces_of_a_rank_are_refused(tmp_path):
    one = kineto(step([]))
    with pytest.raises(et.TraceError, match=r"also belongs to rank 0, as .*; expected one Kineto trace per rank"):
        convert(written(tmp_path, a=one, b=one))


def test_json_of_old_schemas_has_the_same_nodes(tmp_path):
    new = host([host_node(3, "aten::mm", 8, inputs=[1], types=["Int"])])
    old = {"name": "aten::mm", "id": 3, "rf_id": 8, "parent": 2, "tid": 1, "inputs": [1], "input_types": ["Int"]}
    old |= {"outputs": [], "output_types": [], "input_shapes": [[]], "output_shapes": [], "op_schema": ""}
    (tmp_path / "a").mkdir()
    paths = written(tmp_path, new=new), written(tmp_path / "a", old=host([old], "1.0.1"))
    made = [convert(some).tables[0] for some in paths]
    assert [list(table.names) for table in made] == [["aten::mm"]] * 2
    assert json.dumps(convert(paths[1]).report)  # all of it can be JSON


def steps_of(count, annotated, host_step):
    """A Kineto trace of several equal steps, and a host trace of one of them."""
    events = []
    for number in range(count):
        begin = 100 * number
        if annotated:
            events.append(op(f"ProfilerStep#{number}", begin, begin + 90, category="user_annotation"))
        events += [
            op("aten::mm", begin + 5, begin + 30, rf_id=10 * number + 1),
            call("cudaLaunchKernel", begin + 6, begin + 8, number + 1),
            kernel("gemm", begin + 9, begin + 45, number + 1),
        ]
    return {"host": host([host_node(3, "aten::mm", 10 * host_step + 1)]), "kineto": kineto(events)}


def test_the_part_that_the_host_trace_is_of_is_converted(tmp_path):
    paths = written(tmp_path, **steps_of(8, annotated=False, host_step=5))
    made = convert(paths)
    (rank,) = made.report["ranks"]
    assert (rank["device_operations"], rank["linked_device_operations"]) == (1, 1)
    assert rank["device_operations_of_all_steps"] == 8
    assert any("only that part is converted: 1 of 8 device operations" in note for note in made.notes)
    everything = convert(paths, "all")
    (rank,) = everything.report["ranks"]
    assert (rank["device_operations"], rank["linked_device_operations"]) == (8, 1)
    assert "5 not linked: launched before the host trace begins" in everything.notes
    assert "2 not linked: launched after the host trace ends" in everything.notes


@pytest.mark.parametrize("host_step", [0, 2, 7])
def test_the_step_that_the_host_trace_is_of_is_converted(tmp_path, host_step):
    made = convert(written(tmp_path, **steps_of(8, annotated=True, host_step=host_step)))
    assert made.report["step"] == host_step
    assert made.report["ranks"][0]["linked_device_operations"] == 1


def test_a_host_trace_alone_says_how_to_get_times(tmp_path):
    made = convert(written(tmp_path, host=host([host_node(3, "aten::mm", 1)])))
    (note,) = (note for note in made.notes if "without a Kineto trace" in note)
    assert "nodes take no time" in note
    assert "nadi trace collect" in note


@pytest.mark.parametrize(("rank", "world"), [(1 << 30, 4), (0, 1 << 30)])
def test_a_run_of_more_ranks_than_a_simulation_has_is_refused(tmp_path, rank, world):
    with pytest.raises(et.TraceError, match=r"kineto.json: a run of [0-9,]* ranks, expected at most 524,287"):
        convert(written(tmp_path, kineto=kineto(step([op("aten::mm", 5, 9)]), rank, world)))


def test_ids_that_fit_by_chance_give_way_to_order_and_names(tmp_path):
    """The ids of the Kineto trace are 3 more than those of the host trace, so two of ten operators fit by chance."""
    names = ["aten::mm", "aten::add", "aten::relu", "aten::mm", "aten::mul", "aten::add", "aten::sum", "aten::mm",
             "aten::div", "aten::sub"]  # fmt: skip
    events = []
    for number, name in enumerate(names):
        begin = 20 * number
        events += [
            op(name, begin, begin + 10, rf_id=number + 4),
            call("cudaLaunchKernel", begin + 2, begin + 3, number + 1),
            kernel(f"kernel {number}", begin + 5, begin + 9, number + 1),
        ]
    nodes = [host_node(number + 3, name, number + 1) for number, name in enumerate(names)]
    made = convert(written(tmp_path, host=host(nodes), kineto=kineto(events)))
    (rank,) = made.report["ranks"]
    assert (rank["linked_operators"], rank["linked_kernels"], rank["kernels"]) == (10, 10, 10)
    assert "rank 0: no record function ids that fit, operators linked by order and name" in made.notes


@pytest.mark.parametrize(
    ("text", "number"), [("0x0", 0), ("0x7f3a00001000", 0x7F3A00001000), ("0xffffffffffffffff", -1), ("7", 7)]
)
def test_streams_of_rocm_are_hexadecimal(tmp_path, text, number):
    launch = op("hipLaunchKernel", 15, 20, category="cuda_runtime", correlation=1, stream=text)
    events = [op("aten::mm", 10, 30), launch, kernel("gemm", 22, 60, 1, stream=text), kernel("add", 70, 80, 2, number)]
    made = convert(written(tmp_path, kineto=kineto(step(events))))
    assert names_before(made.tables[0], "gemm") == {"hipLaunchKernel"}
    assert "gemm" in names_before(made.tables[0], "add")  # of the same stream


def test_categories_that_are_not_read_are_counted_and_named(tmp_path):
    others = [op("gemm", 22, 60, category="mtia_ccp_events"), op("launch", 15, 20, category="mtia_runtime")]
    others += [op("gemm", 22, 60, category="hpu_op"), op("gemm", 70, 80, category="hpu_op")]
    silent = [op("f", 1, 2, category=name) for name in ("python_function", "gpu_user_annotation", "overhead", "Trace")]
    made = convert(written(tmp_path, kineto=kineto(step([op("aten::mm", 10, 30), *others, *silent]))))
    assert made.report["ranks"][0]["events_not_read"] == {"mtia_ccp_events": 1, "mtia_runtime": 1, "hpu_op": 2}
    assert any(
        "4 events of categories that are not read, and whose work is lost: hpu_op (2), mtia_ccp_events (1)" in note
        for note in made.notes
    )


def test_kernels_of_other_devices_follow_their_launches(tmp_path):
    events = [op("aten::mm", 10, 30), op("urEnqueueKernelLaunch", 15, 20, category="xpu_runtime", correlation=1)]
    made = convert(written(tmp_path, kineto=kineto(step([*events, kernel("gemm", 22, 60, 1)]))))
    assert names_before(made.tables[0], "gemm") == {"urEnqueueKernelLaunch"}


REDUCE = [[1, 1, 0, 500, 2, "cuda:0"]]
OF_COLLECTIVE = {
    "collective_name": "allreduce",
    "dtype": "Half",
    "in_msg_nelems": 500,
    "out_msg_nelems": 500,
    "pg_name": "0",
    "pg_size": 2,
}
HOST = [
    host_node(2, "[pytorch|profiler|execution_trace|thread]", 0, 1),
    host_node(3, "aten::mm", 11),
    host_node(4, "aten::add", 12),
    host_node(5, "record_param_comms", 13, inputs=REDUCE, types=["Tensor(c10::Half)"], **OF_COLLECTIVE),
    host_node(6, "nccl:all_reduce", 14, 5, scope=7),
]
EVENTS = [
    op("aten::mm", 10, 30, rf_id=11),
    call("cudaLaunchKernel", 15, 16, 1),
    kernel("gemm", 18, 48, 1),
    op("aten::add", 31, 38, rf_id=12),
    call("cudaLaunchKernel", 33, 34, 2),
    kernel("add", 48, 60, 2),
    op("record_param_comms", 40, 60, rf_id=13),
    op("nccl:all_reduce", 45, 58, rf_id=14, category="user_annotation"),
    call("cudaLaunchKernelExC", 50, 55, 3),
    nccl_kernel(52, 90, 3),
]
LAUNCHED_BY = {1: 3, 2: 4, 3: 6}
"""By correlation, the id of the host operator that has launched a kernel."""


def merged(with_record_ids):
    """What chakra_trace_link makes of HOST and EVENTS: the time of a kernel is that of its launch."""
    nodes = copy.deepcopy(HOST)
    timed = {event["args"].get("Record function id"): event for event in EVENTS}
    for node in nodes:
        event = timed.get(node["attrs"][0]["value"])
        if event:
            node |= {"ts": event["ts"], "inclusive_dur": event["dur"], "exclusive_dur": 1, "inter_thread_dep": None}
    launches = {event["args"]["correlation"]: event["ts"] for event in EVENTS if event["cat"] == "cuda_runtime"}
    for event in EVENTS:
        if event["cat"] == "kernel":
            correlation = event["args"]["correlation"]
            parent = next(node for node in nodes if node["id"] == LAUNCHED_BY[correlation])
            device = copy.deepcopy(parent) | {"id": 100 + correlation, "ctrl_deps": parent["id"], "name": event["name"]}
            device |= {"cat": "kernel", "ph": "X", "ts": launches[correlation], "inclusive_dur": event["dur"]}
            device["stream"] = event["args"]["stream"]
            if not with_record_ids:
                device["attrs"] = [entry for entry in device["attrs"] if entry["name"] not in {"rf_id", "tid"}]
            nodes.append(device)
    return host(sorted(nodes, key=lambda node: node["id"]))


def compute(table):
    """Names and durations of all kernels and collectives."""
    rows = np.flatnonzero(~table.is_cpu_op)
    return sorted((table.names[row], int(table.duration_micros[row]), int(table.comm_size[row])) for row in rows)


@pytest.mark.parametrize("with_record_ids", [True, False])
def test_a_merged_trace_becomes_what_its_two_parts_become(tmp_path, with_record_ids):
    parts = convert(written(tmp_path, host=host(HOST), kineto=kineto(EVENTS, world=2)))
    whole = convert(written(tmp_path, both=merged(with_record_ids)))
    assert compute(whole.tables[0]) == compute(parts.tables[0])
    (rank,) = whole.report["ranks"]
    assert (rank["linked_operators"], rank["kernels"], rank["linked_kernels"]) == (4, 3, 3)
    table = whole.tables[0]
    assert names_of_parents(table, list(table.names).index("add")) == {"gemm", "(launch)"}
    begins = {name: int(start) for name, start in zip(table.names, table.start_time_micros, strict=True)}
    assert begins["gemm"] - begins["aten::mm"] == 5  # as it was launched
    assert begins["add"] - begins["gemm"] == 30  # as its stream was free
    assert any("waits between streams" in note for note in whole.notes)


def test_operators_without_a_record_function_id_are_linked_by_their_own_entry(tmp_path):
    document = merged(with_record_ids=True)
    for node in document["nodes"]:
        for entry in node["attrs"]:
            if entry["name"] == "rf_id":
                entry["value"] = 0
    (rank,) = convert(written(tmp_path, both=document)).report["ranks"]
    assert (rank["linked_operators"], rank["linked_kernels"]) == (4, 3)


@pytest.mark.parametrize(
    ("place", "change", "says"),
    [
        (1, {"id": "x"}, "entry 1 of nodes: expected a node with id and name"),
        (1, {"name": None}, "entry 1 of nodes: expected a node with id and name"),
        (5, {"ts": None}, "entry 5 of nodes: expected numbers as ts and inclusive_dur"),
        (5, {"inclusive_dur": "1"}, "entry 5 of nodes: expected numbers as ts and inclusive_dur"),
        (1, {"ts": float("inf")}, "entry 1 of nodes: expected numbers as ts and inclusive_dur"),
    ],
)
def test_wrong_entries_are_told(tmp_path, place, change, says):
    document = merged(with_record_ids=True)
    document["nodes"][place] |= change
    with pytest.raises(et.TraceError) as refused:
        convert(written(tmp_path, both=document))
    assert says in str(refused.value)
