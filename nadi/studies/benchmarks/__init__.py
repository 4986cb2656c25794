"""Simulation speed of this machine: `nadi bench`."""
