"""The laws that predict iteration time and epochs, and how they are fitted."""
