"""A cloud that can be slow, forgetful, short of machines and out of order, for tests."""
