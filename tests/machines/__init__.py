"""Machines of a cloud that are processes here: they run the real boot script and the real agent.

`metadata` answers what a cloud's machines ask about themselves; `computer` is a directory, a PATH
with harmless commands, and the boot script in it.
"""
