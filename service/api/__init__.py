"""HTTP: parse, call one thing, answer."""
