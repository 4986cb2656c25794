"""Fixtures of all tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real inputs made by others, where a checkout has one."""
    shared = Path(os.environ.get("NADI_SHARED") or Path(__file__).parents[2] / "shared")
    folder = shared / "data"
    if not folder.is_dir():
        pytest.skip(f"no shared data at {shared}; NADI_SHARED says where it is")
    return folder
