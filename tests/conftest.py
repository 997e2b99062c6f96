"""Settings of the whole suite."""

from hypothesis import settings

# Examples are timed on shared machines: a slow one says nothing about the code.
settings.register_profile("k3", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("k3")
