"""Traces as they come: one of each NPU or shared, in files or made here, with the groups that they name."""
