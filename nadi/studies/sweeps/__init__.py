"""Sweeps over keys of run files: from a sweep file to points, their runs, and one table of all."""
