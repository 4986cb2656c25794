"""Files that users name: how they are read and written, what kind they are, and how the names in them are shown.

It imports nothing of ours, and may be imported by all. `inputs.documents`, which validates JSON documents, is imported
by its own name, because pydantic takes longer to import than all the rest.
"""

from inputs.kinds import FileKind, complaint, kind_of, kind_of_bytes
from inputs.names import shown
from inputs.reading import LARGEST_INFLATED_BYTES, blocks, fills, pieces, read_bytes, read_part, read_text, type_of
from inputs.toml import parse_toml
from inputs.writing import whole_file, write_whole

__all__ = [
    "LARGEST_INFLATED_BYTES",
    "FileKind",
    "blocks",
    "complaint",
    "fills",
    "kind_of",
    "kind_of_bytes",
    "parse_toml",
    "pieces",
    "read_bytes",
    "read_part",
    "read_text",
    "shown",
    "type_of",
    "whole_file",
    "write_whole",
]
