"""Comparing two checkpoints: same model, same values? In exact arithmetic, whatever schemes they are stored in."""
