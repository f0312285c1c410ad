"""Watching a run: attention pictures, sample translations, throughput. Observers draw no random numbers."""
