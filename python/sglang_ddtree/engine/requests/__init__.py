"""What a DDTREE server refuses of a request, found before any of it is served."""
