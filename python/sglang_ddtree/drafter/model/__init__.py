"""A drafter as a torch module, and what it takes from its target."""
