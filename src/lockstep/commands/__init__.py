"""What each script runs, its options, and the run folder."""
