"""The list of commands, in the order of `localspec --help`; each but `help` is a module here."""

HELP = {
    "demo": "watch drafting race against plain decoding",
    "run": "answer one prompt",
    "chat": "talk to a pair in the terminal",
    "serve": "answer other programs over HTTP",
    "pull": "fetch a pair by name, or any GGUF model of the Hub",
    "pairs": "list all known pairs, or add one",
    "info": "check a pair or a GGUF file, and plan its memory",
    "list": "list the pairs that are on this machine, and what takes room",
    "rm": "remove a pair, or files that nothing uses",
    "bench": "measure how much faster a pair is than its target alone",
    "verify": "test that drafting does not change the text",
    "tune": "measure the costs by which drafting decides",
    "fit": "make a faster draft for a pair",
    "doctor": "check llama.cpp and every device",
    "config": "show settings, or one, and folders",
    "completion": "let Tab complete in bash, zsh or fish",
}
