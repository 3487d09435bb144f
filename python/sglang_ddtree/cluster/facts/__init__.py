"""Facts about models, their acceptance and the links between GPUs."""
