"""Plans, what one member of a collective does, and what several algorithms make theirs of."""

from nadi.workload.collectives.plans.plan import MAX_CONNECTIONS, Lane, Plans, each_its_own
