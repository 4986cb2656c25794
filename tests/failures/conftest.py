"""Commands, as for the tests of the command line."""

from tests.cli.conftest import nadi, write_run

__all__ = ["nadi", "write_run"]
