"""The commands of the optional features of jobs, each feature in a file of its own."""
