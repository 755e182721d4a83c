"""SIGKILL of the controller at every executed line: nothing may change but time."""
