"""What follows when weights are updated while a server runs."""
