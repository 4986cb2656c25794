"""Rows of jobs: programs that share a fabric, each with ranks, groups and times of its own."""

from nadi.pdes.core.rows.row import Row, word


class JobTotal(Row, words=8):
    """What a job has done on the NPUs of this LP; the digest names ranks, not NPUs, and counts from the job's start."""

    # sums, since rows and messages finish in another order with another number of workers; two of each, so that two
    # wrong terms that cancel each other in one sum do not cancel in the other
    digest_a = word("packed", "sum of a hash of every finished trace row")
    digest_b = word("packed", "sum of a second hash")
    messages_a = word("packed", "sum over completed messages modulo a prime (pdes.core.message_digest)")
    messages_b = word("packed", "sum modulo another prime")
    messages = word("count", "completed messages")
    trace_rows = word("count", "finished trace rows")
    begin_ps = word("time", "time at which the job starts")
    pair_per_message = word("flag", "each point-to-point message has a queue pair of its own")
