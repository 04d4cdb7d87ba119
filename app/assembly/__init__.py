"""From settings to the parts of a process: the only builder of clients, engines and tasks."""
