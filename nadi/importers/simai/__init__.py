"""Files of SimAI: workloads of layers, topologies, SimAI.conf, and bus bandwidths of its analytical mode.

Sources of the meanings: aliyun/SimAI, astra-sim-alibabacloud/astra-sim (workload/Workload.cc, workload/Layer.cc,
system/MockNcclGroup.cc, system/AstraParamParse.hh, network_frontend/ns3/entry.h and common.h), and aliyun/aicb.
"""
