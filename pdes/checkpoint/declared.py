"""What the arrays of a world are by: every array that a checkpoint holds has an entry in ARRAYS; a test demands it."""

_ARRAYS = {
    "sums and times of the LP": "net.ctl net.count net.jobs.total net.pause_log",
    "node": "net.next_time net.counts net.pool routes.flowlet",
    "outgoing link": "net.tx net.tx_dropped net.port_ties net.gate net.backlog net.depth net.marks net.sample "
    "net.jobs.link_bytes",
    "packet under way or in a queue": "net.record net.telemetry net.inbox net.wait_head net.wait_tail",
    "NPU": "npus.npu npus.heap npus.token npus.system npus.turns",
    "port of an NPU": "npus.port",
    "trace row of an NPU": "rows.state rows.flag rows.start rows.finish",
    "group slot of an NPU": "rows.slot_next islands.start_ps islands.start_row islands.start_order islands.end_ps "
    "islands.packet_row",
    "sending queue pair": "qps.qp qps.cc qps.resends qps.sel_tx qps.qp_key qps.qp_val",
    "receiving queue pair": "qps.rxqp qps.sel_rx qps.begun",
    "message": "qps.msg",
    "active collective": "insts.inst insts.lane insts.phase insts.called insts.asked insts.taken insts.inst_key "
    "insts.inst_val",
    "NVLink domain": "islands.island islands.member islands.started",
    "pool, which is made again": "net.block_next net.block_free net.waiting qps.msg_free insts.inst_free",
    "empty at a cut": "net.ordered net.held_block net.carried net.sample_log npus.busy qps.flow_out qps.flow_in "
    "islands.due",
    "of models with one LP": "net.link_class npus.memory qps.arrived messages.event messages.queue "
    "messages.rush flows.state flows.flow flows.hop flows.hop_use flows.hop_total flows.link flows.link_flow "
    "flows.link_flow_hop flows.finish_heap flows.finish_place flows.dirty flows.fresh flows.reached_flow "
    "flows.fill_heap flows.fill_place flows.front flows.node_share flows.coupled flows.stage flows.lane "
    "flows.is_coupled flows.coupled_ptr flows.link_total flows.touched flows.by_flow flows.turn flows.turn_heap "
    "flows.turn_place",
}
ARRAYS = {name: what for what, names in _ARRAYS.items() for name in names.split()}
ALONE, EMPTY = "of models with one LP", "empty at a cut"
