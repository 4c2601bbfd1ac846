"""The files that `equiv new-pair` writes, below `files/`; they are never imported from here."""
