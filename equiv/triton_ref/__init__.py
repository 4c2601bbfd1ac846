"""Stock Triton implementations: the oracles."""
