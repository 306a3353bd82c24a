"""Django finds commands below."""
