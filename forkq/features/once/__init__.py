"""Jobs whose push may be sent again: ``once``."""
