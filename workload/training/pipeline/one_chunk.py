"""What schedules without chunks of their own ask for."""


def no_chunks(_stages: int, _micro_batches: int, chunks: int) -> str:
    """That vpp is 1."""
    return f"vpp is {chunks}, expected 1, or schedule interleaved" if chunks > 1 else ""
