"""Everything that needs PyTorch: training strategies, state of models, and instrumentation.

Loaded through ``worker_agent.frameworks`` when the script has imported torch; nothing else
imports it.
"""
