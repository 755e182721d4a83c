"""What an iteration measured, on its way to the controller."""
