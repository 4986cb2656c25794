"""NCCL's choices for a group on a fabric, from public facts about versions 2.8 to 2.30 (docs/explanation/nccl.md).

- `hosts`: members by host, and their rails,
- `rings`, `trees`: the orders of the channels,
- `protocols`: LL, LL128 and Simple,
- `generations`: constants of GPU generations, one file each,
- `planned`: channels and speeds that its search finds,
- `tuning`, `overrides`: which algorithm and protocol a size gets,
- `ways`, `nvls_loops`: all that is decided for a size,
- `ring_plans`, `tree_plans`, `nvls_plans`, `pat_plans`, `collnet_plans`, `pxn_plans`: the lanes.
"""
