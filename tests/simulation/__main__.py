"""Run one seed and print everything that happens: `python -m tests.simulation SEED`."""

import sys

from tests.simulation.cluster.world import World

World(int(sys.argv[1]), trace=print).run()
print(f"seed {sys.argv[1]}: all is as it must be")
