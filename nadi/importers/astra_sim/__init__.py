"""Files of ASTRA-sim 2: system, networks of its analytical and ns-3 back ends, remote memory, groups, and its output.

Sources of the meanings: astra-sim/astra-sim (system/Sys.cc, system/astraccl, workload/Workload.cc,
workload/Statistics.cc), astra-sim/astra-network-analytical, astra-sim/astra-network-ns3 (scratch/common.h) and
astra-sim/astra-memory-analytical.
"""
