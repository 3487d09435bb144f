"""Measurements of a machine: all-reduces, and the steps of a running server."""
