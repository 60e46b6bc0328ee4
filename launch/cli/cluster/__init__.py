"""Commands for the processes of a cluster, where other machines run them."""
