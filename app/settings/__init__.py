"""Everything that an operator can set: one frozen `Settings`, which the application and the commands load once at
start.
"""

from app.settings.configuration_errors import ConfigurationError, ConfigurationFault
from app.settings.load import load_settings
from app.settings.sections import Settings

__all__ = ["ConfigurationError", "ConfigurationFault", "Settings", "load_settings"]
