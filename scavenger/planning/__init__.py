"""Decides what a job does next: probe a configuration, train on one, or change to another.

The reconciler, the simulator and the command line call `decide` with a planning state; the API
draws curves from the same state. The package is pure: state in, decision and reason out.
"""
