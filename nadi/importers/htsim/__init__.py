"""Files and options of htsim and ATLAHS: connection matrices, topologies and GOAL schedules.

Sources of the meanings: ultraethernet/uet-htsim, Broadcom/csg-htsim and spcl/HTSIM, sim/datacenter
(connection_matrix.cpp, fat_tree_topology.cpp, main_uec.cpp) and sim/trigger.cpp.
"""
