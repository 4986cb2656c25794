"""Translation of traces into a Program: the work of each NPU as arrays for the engine."""
