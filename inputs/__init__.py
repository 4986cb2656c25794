"""User-named files: reading and writing them, recognising their kind, and displaying the names in them.

This package imports no other package of the project, and every other may import it. `inputs.documents`, which validates
JSON documents, is imported by its own name, because importing pydantic takes longer than all the rest.
"""

from nadi.inputs.errors import refusing
from nadi.inputs.files import (
    LARGEST_INFLATED_BYTES,
    blocks,
    fills,
    mapped,
    parse_toml,
    pieces,
    read_bytes,
    read_text,
    shown,
    type_of,
    whole_file,
    write_whole,
)
from nadi.inputs.kinds import FileKind, complaint, kind_of, kind_of_bytes
