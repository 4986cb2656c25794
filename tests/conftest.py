"""Fixtures of all tests."""

import pytest

from tests.needs import SHARED


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real inputs made by others, where a checkout has one."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}; NADI_SHARED says where another is")
    return folder
