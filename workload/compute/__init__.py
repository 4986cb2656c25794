"""Compute times of accelerators: operators, GPU specifications, tables of measured times, and a roofline model."""

from workload.compute.aicb import AicbModel, read_aicb
from workload.compute.efficiency import ALONE, IN_SERVING, IN_STEPS, Efficiencies, SustainedShare
from workload.compute.gpu import Gpu, find_gpu, gpu_names
from workload.compute.operators import Operator, format_operators, parse_operators
from workload.compute.tables import Measurement, read_table, read_tables, table_names, write_table
from workload.compute.times import SOURCES, ComputeTimes
