"""What targets hold for likely at every token of their answers: kept in files, and logged while they answer."""
