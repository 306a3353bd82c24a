"""An app with a model and jobs."""
