"""Calibration of `nadi bench`: the speed of this machine, apart from other files because kernels are hashed."""
