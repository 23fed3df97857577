"""All metrics as rows of tables: GET /metrics and docs/reference/metrics.md are made from these and nothing else."""
