"""Sweeps of `nadi collective`: one collective over sizes and algorithms on an idle fabric."""
