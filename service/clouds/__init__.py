"""Where machines come from: the contract and its implementations."""
