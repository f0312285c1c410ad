"""What every room stands on: errors, whole files, the terminal, hints; imports no room."""
