"""Channel speeds in GB/s that NCCL's search tries before Hopper: speedArrayIntra, speedArrayInter (search.cc)."""

INSIDE = (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0)
BETWEEN = (
    *(48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0),
    *(7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24, 0.12),
)
