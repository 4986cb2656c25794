"""Names of the inputs and of the rows of the engine in annotations; `inputs.arrays` names other arrays."""

from nadi.pdes.core.inputs import Array, Program, Rows
