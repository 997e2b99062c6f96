"""GPUs and nodes: the table of those k3stack knows."""
