"""What the front door refuses. Errors carry the exit code of the command that they end."""


class ConfigError(ValueError):
    """A run file, option or argument is wrong. One line: file, section and key, what was found, what was expected."""

    exit_code = 2


class OutputError(ValueError):
    """Results cannot be written where the user wants them. One line: folder or file, and why."""

    exit_code = 2
