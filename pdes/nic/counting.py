"""Messages as results and digests count them: when each is posted and complete, and between which ranks of a job."""

import numpy as np

from nadi.pdes.core import packet
from nadi.pdes.core.algorithms import mix, mix2
from nadi.pdes.core.jit import inline, kernel

# The digest of messages: two sums that are linear in time, so that a replay adds many messages at once.
#
# A message on lane `lane` from one rank of a job to another, in the seq-th collective of a group, that is complete at
# time t adds K(pair, lane) * F(group, seq) * t modulo a prime, where K and F are hashes. Those of a collective that is
# replayed from begin_ps on, complete at begin_ps + f, add F(group, seq) * (begin_ps * sum(K) + sum(K * f)), whose two
# sums do not change from one replay to the next. There are two primes, because one alone would not see a shift by a
# multiple of it.

PRIME_A, PRIME_B = 2**31 - 1, 2**31 - 19  # the two largest primes below 2^31: products stay below 2^62


@inline
def factors(key):
    """Return a 32-bit hash as a factor of each sum, below its prime.

    Args:
        key: Hash to spread over both primes.
    """
    # two hashes of the same key, which are independent enough for two sums
    return key % PRIME_A, mix(key + 0x2545F491) % PRIME_B


@inline
def message_keys(pair, lane):
    """Return the factors K of both sums for a message, by its pair of ranks (`pair_word`) and its lane."""
    return factors(mix2(pair, lane))


@inline
def collective_keys(tag):
    """Return the factors F of both sums for the messages of a collective, by the tag of any of them."""
    return factors(mix2(tag >> packet.SEQ_SHIFT, 0x4D5347))


@inline
def add_message(total, pair, tag, now_ps):
    """Add a message that is complete to a job's totals.

    Args:
        total: Totals of the job (a row `JobTotal`), which the function changes.
        pair: Word of the ranks of sender and receiver (`pair_word`).
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        now_ps: Time in ps at which the message is complete.
    """
    message_a, message_b = message_keys(pair, packet.tag_lane(tag))
    collective_a, collective_b = collective_keys(tag)
    total.messages += 1
    # reduced after each product: factors are below 2^31, so no intermediate value reaches 2^63
    total.messages_a = (total.messages_a + message_a * collective_a % PRIME_A * (now_ps % PRIME_A)) % PRIME_A
    total.messages_b = (total.messages_b + message_b * collective_b % PRIME_B * (now_ps % PRIME_B)) % PRIME_B


@kernel
def sum_messages(ranks, src, dst, lane, finish_ps, sums):
    """Write to int64[4] sums the sums of K and of K * f over m messages, for each prime.

    ranks: int64[n], rank within its job of each place in an NVLink domain. src, dst, lane, finish_ps: int64[m], places
    of the ends of each message, lane, and when it is complete.
    """
    # sums[0], sums[2]: sum of K modulo both primes; sums[1], sums[3]: sum of K x f
    sums[0] = sums[1] = sums[2] = sums[3] = 0
    for i in range(src.shape[0]):
        message_a, message_b = message_keys(packet.pair_word(ranks[src[i]], ranks[dst[i]]), lane[i])
        sums[0] = (sums[0] + message_a) % PRIME_A
        sums[1] = (sums[1] + message_a * (finish_ps[i] % PRIME_A)) % PRIME_A
        sums[2] = (sums[2] + message_b) % PRIME_B
        sums[3] = (sums[3] + message_b * (finish_ps[i] % PRIME_B)) % PRIME_B


@inline
def add_messages(total, tag, begin_ps, messages, sums):
    """Add the messages of a collective to a job's totals.

    Args:
        total: Totals of the job (a row `JobTotal`), which the function changes.
        tag: Tag of any of the messages (word 3 of a packet).
        begin_ps: Begin of the collective in ps.
        messages: Number of the messages.
        sums: The four sums that `sum_messages` returns.
    """
    collective_a, collective_b = collective_keys(tag)
    total.messages += messages
    # sum of K (begin + f) = begin x sum of K + sum of K f
    sum_a = (begin_ps % PRIME_A * sums[0] + sums[1]) % PRIME_A
    sum_b = (begin_ps % PRIME_B * sums[2] + sums[3]) % PRIME_B
    total.messages_a = (total.messages_a + collective_a * sum_a) % PRIME_A
    total.messages_b = (total.messages_b + collective_b * sum_b) % PRIME_B


@inline
def within_job(net, connection):
    """Return a connection with the number of its group within the job, so that paths do not depend on other jobs.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        connection: Group of the queue pair with number and share (pdes/core/packet.py).
    """
    # P2P is all ones in 19 bits, so it is the mask of the group, too; CONTROL and P2P are the same groups in all jobs
    group = connection & packet.P2P
    return connection if group >= packet.CONTROL else connection - group + np.int64(net.jobs.group[group])


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
        flow.pair = packet.pair_word(npus.npu[node].number, packet.destination(qp.w1))
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
    job = packet.job_of(dst)
    # the last row belongs to no job: an aggregator in a switch serves several, so the other end names the job
    if job == net.jobs.total.shape[0] - 1:
        job = packet.job_of(src)
    return net.jobs.total[job]


@inline
def tag_within_job(net, tag):
    """Return a tag with the number of its group within the job, so that the digest does not depend on other jobs.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
    """
    group = packet.tag_group(tag)
    # subtracts in place, since the group is the highest field of the tag: no other field changes
    return tag if group == packet.P2P else tag - ((group - np.int64(net.jobs.group[group])) << packet.GROUP_SHIFT)


@inline
def count_message(net, pair, tag, now_ps):
    """Count a message that is complete, in the digest too.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        pair: Word of the NPUs that send and receive it (`pair_word`).
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        now_ps: Time in ps at which it is complete.
    """
    src, dst = net.jobs.who[packet.pair_source(pair)], net.jobs.who[packet.pair_destination(pair)]
    total = total_of(net, src, dst)
    net.count.flows += 1
    # ranks and times of the job: its digest is the same alone, or on other NPUs at another time
    add_message(
        total,
        packet.pair_word(packet.rank_of(src), packet.rank_of(dst)),
        tag_within_job(net, tag),
        now_ps - total.begin_ps,
    )


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
    pair = packet.pair_word(packet.source(word1), packet.destination(word1))
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
