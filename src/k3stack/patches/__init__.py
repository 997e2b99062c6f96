"""Runtime patches for vLLM: one file each, a registry, a plugin entry point.

    switches -> registry -> patch N: needed? -> apply (edits) -> verify -> outcome -> report (log lines)
                   ^
    plugin, sitecustomize -> hook (waits until vLLM's K3 model is imported)

Standard library only until vLLM's modules are there, and relative imports only: `export` copies this folder into a
directory that a stock image can put on its PYTHONPATH.
"""
