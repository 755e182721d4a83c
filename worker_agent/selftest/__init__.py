"""The self-test: what the agent costs, measures and can do, tried on the user's own machine."""
