"""What an operator can set: one frozen `Settings`, read once at start by the composition root and the commands."""

from app.settings.configuration_errors import ConfigurationError, Fault
from app.settings.load import client_key, load
from app.settings.sections import Settings

__all__ = ["ConfigurationError", "Fault", "Settings", "client_key", "load"]
