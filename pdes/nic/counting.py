"""Messages as results and digests count them: when each is posted and complete, and between which ranks of a job."""

import numpy as np

from nadi.pdes.core.jit import inline
from nadi.pdes.core.message_digest import add_message
from nadi.pdes.core.packet import (
    CONTROL,
    GROUP_SHIFT,
    P2P,
    destination,
    job_of,
    pair_destination,
    pair_source,
    pair_word,
    rank_of,
    source,
    tag_group,
)


@inline
def within_job(net, connection):
    """Return a connection with the number of its group within the job, so that paths do not depend on other jobs.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        connection: Group of the queue pair with number and share (pdes/core/packet.py).
    """
    # P2P is all ones in 19 bits, so it is the mask of the group, too; CONTROL and P2P are the same groups in all jobs
    group = connection & P2P
    return connection if group >= CONTROL else connection - group + np.int64(net.jobs.group[group])


@inline
def count_posted(net, npus, qps, node, pair, tag, size_bytes, now_ps):
    """Count and record a message that is posted to a queue pair.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        node: Number of the NPU in the LP.
        pair: Row of the queue pair in `qps.qp`.
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        size_bytes: Payload of the message in bytes.
        now_ps: Current time in ps.
    """
    qp = qps.qp[pair]
    if net.const.record_flows == 1:
        flow = qps.flow_out[net.ctl.flows_out]
        net.ctl.flows_out += 1
        flow.pair = pair_word(npus.npu[node].number, destination(qp.w1))
        flow.tag = tag
        flow.payload_bytes = size_bytes
        flow.posted_ps = now_ps
        flow.ordinal = qp.messages
    # the ordinal tells equal messages of one queue pair apart when both halves of the records are joined
    qp.messages += 1


@inline
def total_of(net, src, dst):
    """Return the row of the totals of the job of a message's receiver or, if that has none, of its sender (`who`).

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        src: Job and rank of the sender (`JobTables.who`).
        dst: Job and rank of the receiver.
    """
    job = job_of(dst)
    # the last row belongs to no job: an aggregator in a switch serves several, so the other end names the job
    if job == net.jobs.total.shape[0] - 1:
        job = job_of(src)
    return net.jobs.total[job]


@inline
def tag_within_job(net, tag):
    """Return a tag with the number of its group within the job, so that the digest does not depend on other jobs.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
    """
    group = tag_group(tag)
    # subtracts in place, since the group is the highest field of the tag: no other field changes
    return tag if group == P2P else tag - ((group - np.int64(net.jobs.group[group])) << GROUP_SHIFT)


@inline
def count_message(net, pair, tag, now_ps):
    """Count a message that is complete, in the digest too.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        pair: Word of the NPUs that send and receive it (`pair_word`).
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        now_ps: Time in ps at which it is complete.
    """
    src, dst = net.jobs.who[pair_source(pair)], net.jobs.who[pair_destination(pair)]
    total = total_of(net, src, dst)
    net.count.flows += 1
    # ranks and times of the job: its digest is the same alone, or on other NPUs at another time
    add_message(total, pair_word(rank_of(src), rank_of(dst)), tag_within_job(net, tag), now_ps - total.begin_ps)


@inline
def finish_flow(net, qps, word1, tag, ordinal, now_ps):
    """Count and record a message that is complete at its receiver.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        word1: Word 1 of its last packet (pdes/core/packet.py).
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        ordinal: Number of the message within its queue pair.
        now_ps: Current time in ps.
    """
    pair = pair_word(source(word1), destination(word1))
    count_message(net, pair, tag, now_ps)
    if net.const.record_flows == 1:
        flow = qps.flow_in[net.ctl.flows_in]
        net.ctl.flows_in += 1
        # the table of records may be full now: the host empties it before the next action
        net.ctl.check = 1
        flow.pair = pair
        flow.tag = tag
        flow.ordinal = ordinal
        flow.finished_ps = now_ps
