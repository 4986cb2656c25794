"""Sweeps of `nadi collective`: one collective, size after size, algorithm by algorithm."""
