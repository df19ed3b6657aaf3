"""Worker and master as values: what has happened goes in, what is to be done comes out."""
