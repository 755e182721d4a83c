"""Readers for CSV files of measurements: step times, noise, epochs and prices."""
