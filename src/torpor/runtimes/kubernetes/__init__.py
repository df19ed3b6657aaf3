"""Run workspaces as pods of a Kubernetes cluster."""
