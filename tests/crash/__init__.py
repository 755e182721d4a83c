"""SIGKILL of the controller after every effect and at every line: nothing may change but time."""
