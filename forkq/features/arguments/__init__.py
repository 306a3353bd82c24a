"""The types of the arguments of a job."""
