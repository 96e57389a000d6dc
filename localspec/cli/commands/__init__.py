"""The list of commands, in the order of `localspec --help`; each but `help` is a module here."""

HELP = {
    "demo": "watch drafting race against plain decoding",
    "run": "answer one prompt",
    "chat": "talk to a pair in the terminal",
    "serve": "an HTTP endpoint for other programs",
    "pull": "fetch a pair by name, or any GGUF model of the Hub",
    "pairs": "list all known pairs, or add one",
    "info": "look at a pair closely before fetching it",
    "list": "list the pairs that are on this machine",
    "rm": "remove a pair, unused files or remembered replies",
    "bench": "measure a pair against plain decoding, on built-in prompts or on yours",
    "verify": "test that a pair's text is the target's",
    "tune": "measure the cost of a pair's passes here",
    "fit": "make a draft that suits a target",
    "doctor": "try the backend and every device",
    "config": "show settings and folders, and where each is set",
    "completion": "let Tab complete in bash, zsh or fish",
}
SUCCESSORS = {
    "compare": "bench PROMPT",
    "forget": "rm --replies",
    "outdated": "list --outdated",
    "prune": "rm --unused",
}
