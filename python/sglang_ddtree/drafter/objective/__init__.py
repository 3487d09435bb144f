"""The training objective: blocks of a text, and their loss."""
