"""Fixtures of the records: commands run in the test's own process."""

from tests.cli.conftest import nadi  # noqa: F401 - the fixture
