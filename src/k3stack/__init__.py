"""k3stack: from a Kimi-K3 checkpoint to an endpoint people can trust.

Importing this package loads nothing heavy: the rooms (`k3stack.spec`, `k3stack.checkpoint`, ...) load on use.
"""

__version__ = "0.1.0"
