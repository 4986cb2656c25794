"""What people read on a terminal: a console that takes all text as it is, tables, quantities with units."""
