"""Processes that hold the weights: workers push gradients to them and fetch weights from them."""
