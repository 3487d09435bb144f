"""Start-up: flags, defaults, checks of the whole configuration, and the kernels of the server."""
