"""Jobs whose truth is known, run through the same ``decide`` as real ones."""
