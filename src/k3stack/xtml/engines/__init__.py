"""XTML inside the engines: what their own parsers make of it, and ours as a vLLM plugin."""
