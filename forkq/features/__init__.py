"""What a job may have beyond its plain way, a folder for each feature: docs/internals.md, "The
way of a marked job". A plain job passes none of this."""
