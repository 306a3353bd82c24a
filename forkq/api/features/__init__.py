"""What people see and do of the optional features of jobs, each feature in a file of its own."""
