"""The error of this stage."""


class WorkloadError(ValueError):
    """The user's traces, groups or settings are wrong.

    The text is one line: file and node (or setting), what was found, what was expected.
    """

    exit_code = 2
