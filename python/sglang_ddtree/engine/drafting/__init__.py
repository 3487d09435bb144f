"""The drafter: its block forward, its heads and what it reads of the target's tables."""
