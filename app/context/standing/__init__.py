"""Standing requests: sentences in which the user sets rules, preferences, names and prohibitions. Pure."""
