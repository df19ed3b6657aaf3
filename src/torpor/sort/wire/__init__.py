"""What master and workers say to each other, and how it gets there."""
