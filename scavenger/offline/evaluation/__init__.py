"""How well the laws predict measurements that they were not fitted to.

The command `evaluate` lists the tasks that a set of tables allows, runs them and summarises the
errors.
"""
