"""Everything that touches SGLang: plugin, flags, algorithm, worker."""
