"""What users may request and what keeps a workspace awake: the rules between API and database."""
