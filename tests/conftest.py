"""Fixtures of all tests."""

import sys

import pytest
from hypothesis import settings

from tests.budgets import bounded
from tests.needs import SHARED

settings.register_profile("nadi", bounded(100))
settings.load_profile("nadi")  # for tests of random examples that do not say how many


@pytest.fixture(scope="session", autouse=True)
def byte_code(tmp_path_factory):
    """Where Python must leave no byte code beside sources, the processes that tests start share it elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.dont_write_bytecode:
            patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("byte-code")))
        yield


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real inputs made by others, where a checkout has one."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}; NADI_SHARED says where another is")
    return folder
