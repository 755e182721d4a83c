"""Everything that needs PyTorch: training strategies, state of models, and instrumentation.

Sessions load it through ``worker_agent.frameworks``; agent run's sitecustomize and the self-test
import it directly.
"""
