"""Training: the loop, its optimizers, and states that it resumes from."""
