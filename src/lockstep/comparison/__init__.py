"""Variants trained side by side, and judged against the noise of their own arithmetic."""
