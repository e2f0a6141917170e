"""Inputs that are broken on purpose, and a harness that hands them to the commands."""
