"""NCCL's behaviour for a group on a fabric, from public facts about NCCL 2.8 to 2.30 (docs/explanation/nccl.md).

- `channel_orders`: members by host, their rails, and the orders of the channels,
- `protocols`: LL, LL128 and Simple,
- `generations`: constants of GPU generations, one file each,
- `graph_search`: channels and speeds that NCCL's search finds,
- `tuning`: choice of algorithm and protocol for a size,
- `decision`, `nvls_loops`: all decisions for a size, and the times that they depend on,
- `ring_plans`, `tree_plans`, `nvls_plans`, `pat_plans`, `collnet_plans`, `pxn_plans`: the lanes.
"""
