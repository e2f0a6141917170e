"""Quantisation without IR: integer types, schemes, step sizes, statistics of calibration runs."""
