"""Runs with optical switches."""

from dataclasses import replace
from functools import partial

from nadi.configuration.optical import OpticalSection
from nadi.launching.progress import NoProgress
from nadi.pdes import Settings, build_world, run
from nadi.simulation.assembly import schedule
from nadi.simulation.assembly.optical import with_circuits
from nadi.simulation.assembly.workload_phases import phases_of
from nadi.simulation.followed_epochs import FollowedEpochs
from nadi.topologies import build
from nadi.workload import alone

MTU, HEADER = 4096, 82
SIZE = MTU + HEADER
US = 10**6
WIDE = {"window_bytes": 1 << 26}
LEAVES = "leaf-spine:leaves={},hosts_per_leaf=1,spines=0,rate=100Gbps,delay=1us"
ROTOR = {"ports": "leaf", "rate": "100Gbps", "delay": "1us", "matchings": "rotor", "slot": "50us", "dark": "5us"}
HELD = {"in_flight": "hold", "routes": "direct"}


def wire_ps(gbps, size=SIZE):
    return int(size * 8e12 / (gbps * 1e9) + 0.5)


def optical_fabric(spec, *sections, detection_ps=US, faults=()):
    """A fabric with optical switches, and the schedule of its circuits and of faults, as a run file gives them."""
    base = build(spec, in_parts=True) if isinstance(spec, str) else spec
    graph, switches = with_circuits(base, [OpticalSection.model_validate(each) for each in sections], SIZE)
    return graph, schedule(faults, detection_ps, graph, cut_through=False, circuits=switches.circuits())


def simulate(graph, program, owner=None, **settings):
    return run(build_world(graph, program, Settings(**settings), owner))


def circuit(faults, number):
    """The windows of a circuit in ps."""
    return faults.circuits.circuits[number].lit


def followed(base, program, *sections, detection_ps=US, chosen=None, **settings):
    """The settings, results and begins of epochs of a run whose optical switches follow phases of its work."""
    base = build(base, in_parts=True) if isinstance(base, str) else base
    graph, switches = with_circuits(base, [OpticalSection.model_validate(each) for each in sections], SIZE)
    scheduled = partial(schedule, (), detection_ps, graph, cut_through=False)
    epochs = FollowedEpochs(switches, phases_of(program, switches.phases, alone), scheduled)
    guess = replace(chosen or Settings(), faults=epochs.faults(epochs.guessed()), **settings)
    runs = []

    def once(asked):
        runs.append(asked)
        return run(build_world(graph, program, asked))

    reports_ps, results = epochs.find(guess, once, alone, NoProgress())
    found = replace(guess, faults=epochs.faults(reports_ps))
    return graph, found, results or once(found), len(runs)
