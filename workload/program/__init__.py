"""From traces to a Program, what each NPU does as arrays that the engine walks."""
