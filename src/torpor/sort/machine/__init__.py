"""Worker and master as values: events in, commands out."""
