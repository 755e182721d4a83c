"""What a table of measurements says about time and cost of every configuration."""
