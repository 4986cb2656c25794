"""Interleaved 1F1B: stage s has v chunks, of slices s, s + p, ... (Narayanan et al., arXiv 2104.04473, section 2.2.2).

The order is that of Megatron-LM (megatron/core/pipeline_parallel/schedules.py): micro-batches go in groups of p, a
group through a chunk and then through the next; stage s does 2 (p - 1 - s) + (v - 1) p forward passes ahead. The bubble
is (p - 1) (F + B) / v. Megatron-LM used to do all forward passes first where m = p; now it does not, nor do we.
"""

from workload.generators.training.pipeline.work import Work

NAME = "interleaved"
TAKES_VPP = True


def order(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Work]:
    """What a stage does: forward passes ahead, one of each, then the backward passes that are left."""
    total = micro_batches * chunks
    ahead = _ahead(stage, stages, micro_batches, chunks)
    done = [_work("forward", i, stages, chunks) for i in range(ahead)]
    for i in range(total):
        if i + ahead < total:
            done.append(_work("forward", i + ahead, stages, chunks))
        done.append(_work("backward", i, stages, chunks))
    return done


def in_flight(stage: int, stages: int, micro_batches: int, chunks: int) -> int:
    """Those of the first forward passes, and one."""
    return min(_ahead(stage, stages, micro_batches, chunks) + 1, micro_batches * chunks)


def in_flight_of_chunks(stage: int, stages: int, micro_batches: int, chunks: int) -> tuple[int, ...]:
    """Of those that went forward first, groups of p micro-batches through a chunk and then through the next."""
    rounds, rest = divmod(in_flight(stage, stages, micro_batches, chunks), stages * chunks)
    return tuple(rounds * stages + min(stages, max(0, rest - chunk * stages)) for chunk in range(chunks))


def waits_for_sends(*, overlap_p2p: bool) -> bool:
    """Not with overlap_p2p_comm; Megatron-LM before 3.0 always did."""
    return not overlap_p2p


def position(stage: int, chunk: int, stages: int, _chunks: int) -> int:
    """Slices are dealt out in turn."""
    return chunk * stages + stage


def at(position: int, _chunk: int, stages: int, _chunks: int) -> tuple[int, int]:
    """Each slice is in one place."""
    return position % stages, position // stages


def complaint(stages: int, micro_batches: int, chunks: int) -> str:
    """More than one stage and chunk, and whole groups of micro-batches."""
    if chunks == 1:
        return "vpp is 1, expected at least 2, or schedule 1f1b"
    if stages == 1:
        return "pp is 1, expected at least 2, or vpp 1"
    if micro_batches % stages:
        below = micro_batches // stages * stages
        nearest = f"{below} or {below + stages}" if below else f"{stages}"
        return f"{micro_batches} micro-batches, expected a multiple of pp ({stages}): {nearest}"
    return ""


def _ahead(stage: int, stages: int, micro_batches: int, chunks: int) -> int:
    return min(2 * (stages - 1 - stage) + (chunks - 1) * stages, micro_batches * chunks)


def _work(kind: str, i: int, stages: int, chunks: int) -> Work:
    """The i-th pass of a kind."""
    group, rest = divmod(i, stages * chunks)
    turn, within = divmod(rest, stages)
    micro_batch = group * stages + within
    return Work("forward", micro_batch, turn) if kind == "forward" else Work("backward", micro_batch, chunks - 1 - turn)
