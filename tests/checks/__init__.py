"""Checks of the source text that no linter offers: names, sentences, and the size of the tree."""
