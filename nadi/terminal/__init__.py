"""Terminal output: a console that prints text literally, tables, and quantities with units."""
