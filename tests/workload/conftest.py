"""Shared data, where a checkout has it."""

import pytest


@pytest.fixture
def chakra_data(shared_data):
    return shared_data / "chakra"
