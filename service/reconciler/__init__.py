"""The control loop: read the state of a job, plan one action, apply it, record why.

Planning is pure and reads neither clock nor database. Applying is preceded by the row that
announces it, so a controller may be killed at any line.
"""
