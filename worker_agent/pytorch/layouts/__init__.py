"""A model that the processes of one worker share: cut into pipeline stages.

``AllReduceStrategy`` opens a stage when its process is one of several; each process then averages
its own part of the model with the processes of the same position in the other workers.
"""
