"""From a plan and engine knowledge to a deployment, and from that to commands."""
