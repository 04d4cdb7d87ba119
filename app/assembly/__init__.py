"""Builds the parts of a process from the settings. Only this room builds clients, engines and background tasks."""
