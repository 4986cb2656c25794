"""Interleaved 1F1B: stage s has v chunks, slices s, s + p, ... (Narayanan et al., arXiv 2104.04473, section 2.2.2).

The order is that of Megatron-LM (megatron/core/pipeline_parallel/schedules.py): micro-batches form groups of p, each
group passes through one chunk and then through the next, and stage s runs 2 (p - 1 - s) + (v - 1) p forward passes
before the first backward pass. The bubble is (p - 1) (F + B) / v. Earlier versions of Megatron-LM ran all forward
passes first if m = p; as in the current version, this schedule does not.
"""

from workload.generators.training.pipeline.work import Work

NAME = "interleaved"
TAKES_VPP = True


def order(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Work]:
    """Return the first forward passes, then alternating forward and backward passes, then the other backward passes."""
    total = micro_batches * chunks
    ahead = _ahead(stage, stages, micro_batches, chunks)
    passes = [_work("forward", i, stages, chunks) for i in range(ahead)]
    for i in range(total):
        if i + ahead < total:
            passes.append(_work("forward", i + ahead, stages, chunks))
        passes.append(_work("backward", i, stages, chunks))
    return passes


def in_flight(stage: int, stages: int, micro_batches: int, chunks: int) -> int:
    """Return the number of the first forward passes plus one."""
    return min(_ahead(stage, stages, micro_batches, chunks) + 1, micro_batches * chunks)


def in_flight_of_chunks(stage: int, stages: int, micro_batches: int, chunks: int) -> tuple[int, ...]:
    """Return the first forward passes per chunk: groups of p micro-batches pass through one chunk, then the next."""
    rounds, rest = divmod(in_flight(stage, stages, micro_batches, chunks), stages * chunks)
    return tuple(rounds * stages + min(stages, max(0, rest - chunk * stages)) for chunk in range(chunks))


def waits_for_sends(*, overlap_p2p: bool) -> bool:
    """Return whether a stage waits: not with overlap_p2p_comm; Megatron-LM before 3.0 always waited."""
    return not overlap_p2p


def position(stage: int, chunk: int, stages: int, _chunks: int) -> int:
    """Return the slice of a chunk: slices are assigned round-robin to stages."""
    return chunk * stages + stage


def at(position: int, _chunk: int, stages: int, _chunks: int) -> tuple[int, int]:
    """Return the only place of a slice."""
    return position % stages, position // stages


def complaint(stages: int, micro_batches: int, chunks: int) -> str:
    """Return a message unless there are several stages and chunks, and only full groups of micro-batches."""
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
    """Return the i-th pass of a kind."""
    group, rest = divmod(i, stages * chunks)
    chunk, within = divmod(rest, stages)
    micro_batch = group * stages + within
    if kind == "forward":
        return Work("forward", micro_batch, chunk)
    return Work("backward", micro_batch, chunks - 1 - chunk)
