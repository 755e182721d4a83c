"""The job document: what a user asks for, how it is read, and what is wrong with it.

The command line and the API parse documents here; the controller keeps the resulting `JobSpec`.
"""
