"""Places to start the processes of a run: this machine, hosts over ssh, Slurm nodes."""
