"""What a drafter learns from: prompts, the target's answers, its hidden states."""
