"""The error that a wrong trace or group file raises."""

NOT_STRICT = "[workload] strict = false in the run file, or --set workload.strict=false"
"""What has read_trace drop dependencies that make no sense."""


class TraceError(ValueError):
    """A trace or group file is not what it should be.

    The text is one line: file, byte offset or node id, what was found, what was expected.
    """

    exit_code = 2
