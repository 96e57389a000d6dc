"""How deep to draft, from what passes cost here and how often drafts were kept."""
