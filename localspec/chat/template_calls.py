"""What of Jinja and Python a template may call, and how closely each call is looked at."""

# The methods; all are C, and none but those of a list below makes more than about what it was given.
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(name for name in dir(str) if name.startswith("is"))
    | {
        *(
            "capitalize",
            "casefold",
            "count",
            "endswith",
            "find",
            "format",
            "index",
            "join",
            "lower",
            "lstrip",
        ),
        *("partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit"),
        *("rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper"),
    },
    dict: frozenset({"get", "items", "keys", "values"}),
    list: frozenset({"count", "index"}),
    tuple: frozenset({"count", "index", "grouper", "list"}),  # the latter of what `groupby` makes
}
SPLITTING = frozenset({"split", "rsplit", "splitlines"})
SLOW_TO_SEARCH = frozenset({"strip", "lstrip", "rstrip", "rfind", "rindex", "rpartition", "rsplit"})

# Their time or memory is no multiple of their input's size, and no chat template needs them.
REFUSED_FILTERS = frozenset(
    {"batch", "center", "format", "pprint", "slice", "striptags", "sum", "urlize", "wordwrap", "xmlattr"}
)
# These look at no more than the outside of what they are given.
SHALLOW_FILTERS = frozenset(
    {
        *("attr", "count", "d", "default", "first", "items", "last", "length", "map", "random"),
        *("reject", "rejectattr", "reverse", "select", "selectattr"),
    }
)
# These leave a text in one piece, or have a check of their own.
WHOLE_FILTERS = SHALLOW_FILTERS | {
    *("capitalize", "float", "int", "lower", "replace", "safe", "string", "tojson", "trim", "upper"),
}
SHALLOW_TESTS = frozenset(
    {
        *("boolean", "callable", "defined", "divisibleby", "escaped", "even", "false", "float", "integer"),
        *(
            "iterable",
            "mapping",
            "none",
            "number",
            "odd",
            "sameas",
            "sequence",
            "string",
            "true",
            "undefined",
        ),
    }
)
