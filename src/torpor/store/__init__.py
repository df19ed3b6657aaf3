"""PostgreSQL: rows, queries, migrations, the leader lock."""
