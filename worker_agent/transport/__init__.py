"""One framed connection over TCP, for everything that workers and servers send each other.

Frame sizes are bounded before anything is read, nothing received is executed, and waiting can be
abandoned.
"""
