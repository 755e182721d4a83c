"""The REST client of the controller, and where its address and token come from."""
