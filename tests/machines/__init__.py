"""Machines of a cloud that are processes here: they run the real boot script and the real agent.

`computer` is a directory, a PATH with harmless commands, and the boot script in it; `metadata`
answers what a cloud's machines ask about themselves. `lab` is the network with a place for each
computer: Linux namespaces where they are allowed, else addresses of 127.0.0.0/8. `rented` boots a
computer for each machine that a fake cloud makes.
"""
