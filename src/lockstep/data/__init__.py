"""Tasks and corpora, tokenisation, batches. Knows nothing of attention or of the Transformer."""
