"""Slim Fly: 2 q^2 switches, any two of which are at most two cables apart.

Besta and Hoefler, "Slim Fly: A Cost Effective Low-Diameter Network Topology" (SC 2014), section II-B: the graphs of
McKay, Miller and Siran for a prime power q = 4 w + d, with d = -1, 0 or 1, and `p` NPUs on each switch. With the
elements of the field of q elements, switch (0, x, y) is linked to (0, x, y') if y - y' is in X, switch (1, m, c) to (1,
m, c') if c - c' is in X', and (0, x, y) to (1, m, c) if y = m x + c. A switch has (3 q - d) / 2 cables to others. The
sets X and X' for d = 0 and -1 are those of Hafner, "Geometric realisation of the graphs of McKay-Miller-Siran" (J.
Comb. Theory B 90, 2004).
"""

import itertools

import numpy as np
from pydantic import Field

from nadi.inputs.arrays import Int64
from nadi.inputs.units import GBPS, NS
from nadi.topologies.graph import Extent, Graph, TopologyError
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.parameters import Count, Parameters, Rate, Sizes, Time

_LARGEST_Q = 107  # 22,898 switches, as many as a routing table holds


class Arguments(Parameters):
    """Parameters of the slim fly."""

    q: Count = Field(description="prime power that is no multiple of 4 plus 2; there are 2 q^2 switches")
    p: Count | None = Field(
        None, description="NPUs of a switch; half of its cables to others, rounded up, if not given"
    )
    rate: Rate = Field(400 * GBPS, description="rate of an NPU's link")
    delay: Time = Field(25 * NS, description="propagation delay of an NPU's link")
    local_rate: Rate | None = Field(None, description="rate of a cable within a set of q switches; rate if not given")
    local_delay: Time | None = Field(None, description="delay of a cable within a set; delay if not given")
    global_rate: Rate | None = Field(None, description="rate of a cable between sets; rate if not given")
    global_delay: Time = Field(500 * NS, description="propagation delay of a cable between sets")
    switch_latency: Time = Field(0, description="forwarding latency of a switch")
    dims: Sizes = Field((), description="logical dimensions, fastest first; one of all NPUs if not given")


def extent(arguments: Arguments, name: str) -> Extent:
    """Return the numbers of nodes and cables of the network.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    q, p, degree = _sizes(arguments, name)
    switches = 2 * q * q
    return Extent(switches * p, switches, switches * p + switches * degree // 2, switches)


def build(arguments: Arguments, name: str) -> Graph:
    """Build the network; TopologyError if q is none of its numbers.

    Pods are the sets of q switches with the same first two coordinates. A group is one switch, as detours lead over any
    of them. Switch (0, x, y) has the number q x + y, and (1, m, c) the number q^2 + q m + c, with elements as in
    `_Field`.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    q, p, _ = _sizes(arguments, name)
    field = _Field(q, *(_prime_power(q) or (q, 1)))
    pod = np.repeat(np.arange(2 * q), q)
    npu = np.arange(2 * q * q * p)
    builder = GraphBuilder(name, len(npu))
    builder.set_npu_pods(pod[npu // p])
    number = np.arange(2 * q * q)
    switch = builder.add_named_switches(
        [f"router {i}" for i in number], latency_ps=arguments.switch_latency, pod=pod, group=number
    )
    builder.add_cables(npu, switch[npu // p], arguments.rate, arguments.delay)
    local_delay = arguments.delay if arguments.local_delay is None else arguments.local_delay
    for half, generators in enumerate(_generators(field)):
        # pairs of elements whose difference is a generator, each once: the sets hold the negative of each member
        one, other = np.nonzero(np.isin(field.difference, generators))
        one, other = one[one < other], other[one < other]
        first = np.repeat((half * q + np.arange(q)) * q, len(one))
        ends = switch[first + np.tile(one, q)], switch[first + np.tile(other, q)]
        builder.add_cables(*ends, arguments.local_rate or arguments.rate, local_delay)
    m, x, c = (axis.reshape(-1) for axis in np.meshgrid(*[np.arange(q)] * 3, indexing="ij"))
    y = field.sum[field.product[m, x], c]
    global_rate = arguments.global_rate or arguments.rate
    builder.add_cables(switch[q * x + y], switch[q * q + q * m + c], global_rate, arguments.global_delay)
    # The second eigenvalue of the cables is (q - d) / 2, so any half of the 2 q^2 switches has q^3 / 2 cables to the
    # other or more. For an even q the sets with x and m below q / 2 have so many.
    between = q**3 // 2 * min(global_rate, arguments.local_rate or arguments.rate)
    builder.set_bisection(min(between, len(npu) // 2 * arguments.rate), is_exact=q % 2 == 0)
    return builder.graph(dims=arguments.dims)


def _sizes(arguments: Arguments, name: str) -> tuple[int, int, int]:
    """Return q, the NPUs of a switch, and its cables to other switches; errors begin with the name."""
    q = arguments.q
    if q > _LARGEST_Q or q < 3 or q % 4 == 2 or _prime_power(q) is None:
        expected = f"a prime power from 3 to {_LARGEST_Q} that is no multiple of 4 plus 2, as 5, 7, 8, 9, 11, 13, 17"
        raise TopologyError.at(name, f"q = {q}", expected)
    degree = (3 * q - {0: 0, 1: 1, 3: -1}[q % 4]) // 2
    return q, arguments.p or -(-degree // 2), degree


def _prime_power(q: int) -> tuple[int, int] | None:
    """Return the prime and the exponent of a prime power, None for another number."""
    prime = next((d for d in range(2, q + 1) if q % d == 0), q)
    exponent = next(n for n in itertools.count(1) if prime**n >= q)
    return (prime, exponent) if prime**exponent == q else None


class _Field:
    """The field of q elements; number a + b prime + ... is the polynomial a + b t + ... of a primitive element t."""

    def __init__(self, q: int, prime: int, exponent: int) -> None:
        """Make the tables of sums, differences and products."""
        digits = np.arange(q)[:, None] // prime ** np.arange(exponent) % prime
        weights = prime ** np.arange(exponent)
        self.sum: Int64 = (digits[:, None] + digits) % prime @ weights
        self.difference: Int64 = (digits[:, None] - digits) % prime @ weights
        self.powers = _powers(q, prime, exponent)
        log = np.zeros(q, np.int64)
        log[self.powers] = np.arange(q - 1)
        self.product: Int64 = self.powers[(log[:, None] + log) % (q - 1)]
        self.product[0] = self.product[:, 0] = 0


def _powers(q: int, prime: int, exponent: int) -> Int64:
    """Return the powers 0 to q - 2 of a primitive element, int64[q - 1]."""
    for coefficients in itertools.product(range(prime), repeat=exponent):
        # t^exponent = the polynomial of the coefficients; t is primitive if its powers are all elements but 0
        element, powers = [1] + [0] * (exponent - 1), []
        for _ in range(q - 1):
            powers.append(sum(digit * prime**i for i, digit in enumerate(element)))
            carry = element[-1]
            element = [(low + carry * c) % prime for low, c in zip([0, *element[:-1]], coefficients, strict=True)]
        if len({*powers, 0}) == q:
            return np.array(powers, np.int64)
    raise AssertionError(f"no primitive element among {q}")


def _generators(field: _Field) -> tuple[Int64, Int64]:
    """Return the sets X and X' of the field's elements."""
    powers = field.powers
    q = len(powers) + 1
    even, odd = powers[::2], powers[1::2]
    if q % 4 == 3:
        # -1 is an odd power: the first half of the even powers and their negatives, and the same for the odd ones
        w = (q + 1) // 4
        exponents = np.concatenate([np.arange(0, 2 * w, 2), np.arange(2 * w - 1, 4 * w - 2, 2)])
        even, odd = powers[exponents], powers[(exponents + 1) % (q - 1)]
    elif q % 4 == 0:
        odd = np.append(odd, powers[0])  # power q - 1 is 1 again
    return even, odd
