"""Reports of a run: text for people, JSON for programs. Both always say how many cases have which status."""
