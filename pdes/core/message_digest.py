"""The digest of messages: two sums that are linear in time, so that a replay adds many messages at once.

A message on lane `lane` from one rank of a job to another, in the seq-th collective of a group, that is complete at
time t adds K(pair, lane) * F(group, seq) * t modulo a prime, where K and F are hashes. Those of a collective that is
replayed from begin_ps on, complete at begin_ps + f, add F(group, seq) * (begin_ps * sum(K) + sum(K * f)), whose two
sums do not change from one replay to the next. There are two primes, because one alone would not see a shift by a
multiple of it.
"""

from nadi.pdes.core.hashing import mix, mix2
from nadi.pdes.core.jit import inline, kernel
from nadi.pdes.core.packet import SEQ_SHIFT, pair_word, tag_lane

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
    return factors(mix2(tag >> SEQ_SHIFT, 0x4D5347))


@inline
def add_message(total, pair, tag, now_ps):
    """Add a message that is complete to a job's totals.

    Args:
        total: Totals of the job (a row `JobTotal`), which the function changes.
        pair: Word of the ranks of sender and receiver (`pair_word`).
        tag: Word 3 of the message's packets, its tag (pdes/core/packet.py).
        now_ps: Time in ps at which the message is complete.
    """
    message_a, message_b = message_keys(pair, tag_lane(tag))
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
        message_a, message_b = message_keys(pair_word(ranks[src[i]], ranks[dst[i]]), lane[i])
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
