"""User-named files: reading and writing them, recognising their kind, and displaying the names in them.

This package imports no other package of the project, and every other may import it. `inputs.documents`, which validates
JSON documents, is imported by its own name, because importing pydantic takes longer than all the rest.
"""

from nadi.inputs.errors import refusing
from nadi.inputs.kinds import FileKind, complaint, kind_of, kind_of_bytes
from nadi.inputs.names import shown
from nadi.inputs.reading import LARGEST_INFLATED_BYTES, blocks, fills, mapped, pieces, read_bytes, read_text, type_of
from nadi.inputs.toml import parse_toml
from nadi.inputs.writing import whole_file, write_whole
