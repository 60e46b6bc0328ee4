"""A whole cluster in one seeded heap of events: coordinator, servers, trainers, network, clocks and disks.

Everything between the processes goes wrong here as it does on machines, only a thousand times as often, and
what must hold is looked at after every event. One seed is one world, and runs again in the same way:

    python -m tests.simulation SEED
"""
