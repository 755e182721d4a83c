"""States of training in files."""
