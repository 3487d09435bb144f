"""What benchmarks and server tests share: real servers, model pairs, prompts."""
