"""Draft depth, from the measured cost of passes and the acceptance of drafts."""
