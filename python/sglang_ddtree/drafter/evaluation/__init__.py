"""What a drafter is worth, and what making one takes."""
