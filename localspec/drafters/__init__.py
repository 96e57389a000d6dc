"""The drafters: models, heads, lookup and predictions, and the choice among them."""
