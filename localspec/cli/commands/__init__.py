"""The commands and their help texts, in the order of `localspec --help`; each has a module in this folder."""

HELP = {
    "demo": "watch drafting race against plain decoding",
    "run": "answer one prompt",
    "chat": "talk to a pair in the terminal",
    "chats": "list, show or delete conversations",
    "serve": "answer other programs over HTTP",
    "pull": "download a pair by name, or any GGUF model on Hugging Face",
    "pairs": "list all known pairs, or add one",
    "info": "check a pair or a GGUF file, and plan its memory",
    "list": "list the pairs on this machine, and the disk space in use",
    "rm": "remove a pair, or files that nothing uses",
    "bench": "measure how much faster a pair is than its target alone",
    "verify": "test that drafting does not change the text",
    "fit": "make a faster draft for a pair",
    "doctor": "check llama.cpp and every device",
    "config": "show settings and folders",
    "completion": "let Tab complete in bash, zsh or fish",
}
