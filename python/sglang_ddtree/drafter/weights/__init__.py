"""A drafter's weights: first values, reading, writing, conversion."""
