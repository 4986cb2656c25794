"""Shared data, where a checkout has it."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def chakra_data():
    """Traces that others made."""
    shared = Path(os.environ.get("NADI_SHARED") or Path(__file__).parents[3] / "shared")
    folder = shared / "data" / "chakra"
    if not folder.is_dir():
        pytest.skip(f"no shared data at {shared}")
    return folder
