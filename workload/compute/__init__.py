"""Compute times of accelerators: operators, GPU specifications, tables of measured times, and a roofline model."""

from nadi.workload.compute.aicb import AicbModel, read_aicb
from nadi.workload.compute.efficiency import ALONE, IN_SERVING, IN_STEPS, Efficiencies, SustainedShare
from nadi.workload.compute.gpu import Gpu, find_gpu, gpu_names
from nadi.workload.compute.measured_times import Measurement, read_table, read_tables, table_names, write_table
from nadi.workload.compute.operators import Operator, format_operators, parse_operators
from nadi.workload.compute.times import SOURCES, ComputeTimes
