"""The worker's program: fork server, service, heartbeat, execution of commands, sending of parts."""
