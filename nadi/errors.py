"""Errors that a command reports in one line; each class has the exit code of the command that it ends."""


class ConfigError(ValueError):
    """A run file, option or argument is wrong. The message is one line: file, section, key, and what was expected."""

    exit_code = 2


class OutputError(ValueError):
    """Results cannot be written where the user requests them. The message has one line: folder or file, and reason."""

    exit_code = 2
