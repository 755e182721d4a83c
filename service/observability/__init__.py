"""What operators see of a controller: logs, Prometheus metrics and traces, all without secrets."""
