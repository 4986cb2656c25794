"""Entry points to single helpers of the workers, so that tests can call them compiled."""

from nadi.pdes.core.jit import kernel
from nadi.pdes.workers.batches import batch_words, pack, unpack
from nadi.pdes.workers.team import context_at, next_lp as take_next, plan_next


@kernel
def plan(address, lps, number):
    plan_next(context_at(address).pool, lps, number)


@kernel
def packed(address, lp, number, begin_ps):
    m = context_at(address)
    pack(m.batches, m.addresses[lp], lp, number, begin_ps)


@kernel
def unpacked(address, lp, number):
    unpack(context_at(address).batches, lp, number)


@kernel
def length_of_batch(address, records):
    return batch_words(records, context_at(address).batches.shape.record_words)


@kernel
def next_lp(address, lps, number, worker):
    return take_next(context_at(address).pool, lps, number & 1, worker)
