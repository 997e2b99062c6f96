"""Settings of the whole suite."""

import signal

from hypothesis import settings

# Examples are timed on shared machines: a slow one says nothing about the code.
settings.register_profile("k3", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("k3")

# A shell starts what runs in the background with SIGINT ignored, which our processes would inherit: Ctrl-C is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
