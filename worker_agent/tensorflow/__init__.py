"""Everything that needs TensorFlow: the training strategy and the state of Keras models.

Other parts of the agent reach it through ``worker_agent.frameworks`` only.
"""
