"""Plans what of two models goes where."""
