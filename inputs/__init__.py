"""Files that users give: read whole and bounded, and named for what they are where they are of the wrong kind.

It imports nothing of ours, and may be imported by all.
"""

from inputs.kinds import Kind, complaint, kind_of, kind_of_bytes
from inputs.reading import LARGEST_INFLATED_BYTES, blocks, read_bytes, read_text

__all__ = [
    "LARGEST_INFLATED_BYTES",
    "Kind",
    "blocks",
    "complaint",
    "kind_of",
    "kind_of_bytes",
    "read_bytes",
    "read_text",
]
