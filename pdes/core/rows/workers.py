"""Rows of what workers share."""

from pdes.core.rows.row import Kind, Row, word


class ParcelHeader(Row, words=8, written_by=("workers.parcel_costs", "workers.parcels")):
    """Of what one team sends to another after a window (pdes/workers/parcels.py): one cache line."""

    records = word(Kind.COUNT, "packets in the parcel; workers that put some in add to it, so it is the first word")
    soonest_ps = word(Kind.TIME, "earliest event of the team that sends")
    hops = word(Kind.COUNT, "packet-hops that it has done")
    rows_left = word(Kind.COUNT, "trace rows that it has not finished, less all of them")
