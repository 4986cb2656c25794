"""The error that a wrong trace or group file raises."""


class TraceError(ValueError):
    """A trace or group file is not what it should be.

    The text is one line: file, byte offset or node id, what was found, what was expected.
    """

    exit_code = 2
