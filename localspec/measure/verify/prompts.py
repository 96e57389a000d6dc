"""Short prompts of four kinds, for finding out whether speculation changes a text."""

from localspec.measure.prompts import BenchPrompt, Category

VERIFY_PROMPTS = (
    BenchPrompt(
        "palindrome", Category.CODE, "Write a Python function that tells whether a text is a palindrome."
    ),
    BenchPrompt("kitchen", Category.CHAT, "Hello! What can I cook with two eggs, rice and an onion?"),
    BenchPrompt("lighthouse", Category.PROSE, "Write the beginning of a story about a lighthouse keeper."),
    BenchPrompt(
        "person", Category.JSON, 'Describe a person as JSON with the keys "name", "age", "city" and "pets".'
    ),
    BenchPrompt(
        "count lines", Category.CODE, "Write a shell command that counts the lines of all .txt files here."
    ),
    BenchPrompt("sleep", Category.CHAT, "I cannot sleep before an exam. Give me three short tips."),
    BenchPrompt("rain", Category.PROSE, "Describe a street in the rain, in the voice of an old detective."),
    BenchPrompt(
        "weekdays",
        Category.JSON,
        "List the days of the week as a JSON array of objects with number and name.",
    ),
    BenchPrompt(
        "fibonacci",
        Category.CODE,
        "Write a C function that returns the n-th Fibonacci number without recursion.",
    ),
    BenchPrompt("moon", Category.CHAT, "Why does the moon look larger near the horizon?"),
    BenchPrompt(
        "letter", Category.PROSE, "Write a short letter from a fox to the farmer whose hens it did not take."
    ),
    BenchPrompt(
        "order", Category.JSON, "Write an order of three items with prices and a total as one JSON object."
    ),
)
