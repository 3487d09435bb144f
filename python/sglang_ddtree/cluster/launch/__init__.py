"""Servers as processes: their commands, their cores, and one supervisor of all."""
