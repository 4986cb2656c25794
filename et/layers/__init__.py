"""Workloads of layers, the text of ASTRA-sim 1.0 and SimAI: the file, its loops over layers, and who is in a group."""
