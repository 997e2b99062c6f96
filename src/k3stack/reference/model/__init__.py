"""K3 in PyTorch: exact and readable. Read, in order, batch.py one folder up, then k3.py, kda.py, mla.py and moe.py."""

from k3stack.reference.model.k3 import K3
from k3stack.reference.model.load import load_model

__all__ = ["K3", "load_model"]
