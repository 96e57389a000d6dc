"""One prompt answered twice, with and without drafts."""
