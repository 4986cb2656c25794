"""NCCL's behaviour for a group on a fabric, from public facts about NCCL 2.8 to 2.30 (docs/explanation/nccl.md).

- `channel_orders`: members by host, their rails, the orders of the channels, and those that NCCL's search finds,
- `generations`: constants of GPU generations, one file each; `tables`: those of the tuning model,
- `site`: factors by which a site differs from both,
- `tuning`: protocols, and choice of algorithm and protocol for a size,
- `decision`, `nvls_loops`, `point_to_point`: all decisions for a size, and the times that they depend on,
- `channel_plans`, `switch_plans`, `pxn_plans`: the lanes.
"""
