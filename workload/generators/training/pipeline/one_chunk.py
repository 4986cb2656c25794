"""What schedules without chunks of their own ask for, and what the plain ones of them do."""


def no_chunks(_stages: int, _micro_batches: int, chunks: int) -> str:
    """That vpp is 1."""
    return f"vpp is {chunks}, expected 1, or schedule interleaved" if chunks > 1 else ""


def always_waits(*, overlap_p2p: bool) -> bool:  # noqa: ARG001 - only interleaved ones have what could go on
    """Megatron-LM's plain schedules wait until what they send is sent."""
    return True
