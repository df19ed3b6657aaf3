"""PostgreSQL: the last observation and the present wish of every workspace."""
