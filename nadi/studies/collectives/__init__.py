"""Sweeps of `nadi collective`: one collective over sizes and algorithms on an idle fabric."""

from nadi.studies.collectives.measuring import choose_algorithms, measure_rows, skipped_text
from nadi.studies.collectives.options import demand, sizes_of
from nadi.studies.collectives.page import FILES, CollectiveSweep, sweep_page, sweep_table, winners_table, write_sweep
