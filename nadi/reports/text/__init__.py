"""Text and tables of the commands: one module per kind of result, without computations."""
