"""Small random checkpoints of every architecture that the server knows, and their outputs in float32. See
../README.md."""
