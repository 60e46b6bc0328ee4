"""Where processes of a run are started: this machine, hosts over ssh, Slurm nodes."""
