"""Starting an engine and knowing what it does: preflight, start, follow, stop, and the knowledge of failures.

knowledge   the known failures, as data
recognise   a log, and how its process ended -> ranked causes
phases      log lines -> where a start is, and how far
facts       what preflight looks at; probes gather it, checks judge it
preflight   every check, in seconds, before anything is loaded
process     a process in a session of its own, and everything it left
supervisor  the small process that owns the engine
state       which endpoints run here: one file, safe against two at once
follow      from started to ready, or why not
up, down    the whole line, and its end
doctor      the same knowledge for a log, an address or a folder
"""
