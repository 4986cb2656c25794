"""Functions that the schedules with one chunk per stage share."""


def no_chunks(_stages: int, _micro_batches: int, chunks: int) -> str:
    """Return a message if vpp is not 1."""
    return f"vpp is {chunks}, expected 1, or schedule interleaved" if chunks > 1 else ""


def always_waits(*, overlap_p2p: bool) -> bool:  # noqa: ARG001 - only interleaved schedules overlap messages
    """Return True: Megatron-LM's plain schedules wait until their messages are sent."""
    return True
