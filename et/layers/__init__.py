"""Workloads of layers, the text format of ASTRA-sim 1.0 and SimAI: the file, its loops over layers, and its groups."""

from nadi.et.layers.convert import RankNumbering, stage_tables
from nadi.et.layers.file import LayerFile, read_layers
