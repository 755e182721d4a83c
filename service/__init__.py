"""The controller: it reads the world, asks the library what to do, and does it."""
