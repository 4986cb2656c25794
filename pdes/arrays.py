"""Names of array types, and of the inputs of the engine, in annotations."""

from nadi.pdes.core.inputs import Array, Float64, Graph, Int32, Int64, Program, Rows
