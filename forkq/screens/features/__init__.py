"""How the optional features of jobs are shown, each feature in a file of its own."""
