"""Sets of traces, one per NPU or shared, from files or generators, with the groups that they name."""
