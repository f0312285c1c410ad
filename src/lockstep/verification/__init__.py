"""Is this attention right, and if not, what is wrong? Imports torch, the standard library and the attention alone."""
