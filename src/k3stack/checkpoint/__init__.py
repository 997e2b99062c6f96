"""Checkpoints on disk or on a hub: inspect one, make a tiny one."""
