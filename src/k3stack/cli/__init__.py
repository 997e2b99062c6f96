"""The command line: one file per verb; arguments in, output out, no logic."""
