"""Entry points to single helpers of the workers, so that tests can call them compiled."""

from nadi.pdes.core.jit import kernel
from nadi.pdes.workers.parcels import pack, parcel_words, unpack
from nadi.pdes.workers.team import meeting_at, plan_next
from nadi.pdes.workers.team import next_lp as take_next


@kernel
def plan(address, lps, number):
    plan_next(meeting_at(address).crew, lps, number)


@kernel
def packed(address, lp, number, begin_ps):
    m = meeting_at(address)
    pack(m.parcels, m.addresses[lp], lp, number, begin_ps)


@kernel
def unpacked(address, lp, number):
    unpack(meeting_at(address).parcels, lp, number)


@kernel
def length_of_parcel(address, records):
    return parcel_words(records, meeting_at(address).parcels.shape.record_words)


@kernel
def next_lp(address, lps, number, worker):
    return take_next(meeting_at(address).crew, lps, number & 1, worker)
