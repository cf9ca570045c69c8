"""Episodes as files: written, read, replayed, demonstrated by a task's expert, and sent out as OpenTelemetry spans."""
