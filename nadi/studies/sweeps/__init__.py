"""Sweeps over keys of run files: points from a sweep file, their runs, and one table of all results."""
