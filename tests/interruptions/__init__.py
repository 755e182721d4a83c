"""Machines that their cloud takes back, at every moment of a job, with a notice and without one.

`python -m tests.interruptions` plays the matrix of cells: each is a real job on computers that are
rented from a fake cloud (`tests/machines`). `cells` names them, `stage` holds the controller and
the cloud, `play` lets a cell happen, and `judge` says what was wrong with it.
"""
