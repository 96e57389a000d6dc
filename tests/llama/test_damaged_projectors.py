"""Damaged projectors."""

import os
import random
import subprocess
import sys
from functools import partial

import pytest

from tests.gguf.mutations import by_bytes, by_meaning, taken_apart
from tests.llama.images import KINDS, model_in

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return partial(model_in, tmp_path_factory.mktemp("images"))


LOADING = """
import sys
import localspec
from localspec.errors import LocalspecError
from tests.tiny_images import pictures
target, *files = sys.argv[1:]
for file in files:
    try:
        options = {"draft": "lookup", "threads": 1, "context_length": 512}
        with localspec.load(target=target, mmproj=file, **options) as session:
            session.run("Hi", images=[pictures()["square.png"]], max_tokens=1)
    except LocalspecError as error:
        assert str(error) and error.hint
    print(file, flush=True)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_projector_is_refused_in_a_sentence_or_works(files, tmp_path, kind):
    """llama.cpp would end the process."""
    source, chance = files(kind).projector, random.Random(KINDS.index(kind))
    raw, content = taken_apart(source), source.read_bytes()
    found = {mutation.note: mutation.written() for mutation in chance.sample([*by_meaning(raw)], 8)}
    found |= {
        f"bytes {n}": data for n, data in enumerate(by_bytes(content, len(content) - len(raw.data), 4, 1))
    }
    paths = [tmp_path / f"{number}.gguf" for number in range(len(found))]
    for path, data in zip(paths, found.values(), strict=True):
        path.write_bytes(data)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LOADING, files(kind).target, *paths]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, ([*found][done.stdout.count("\n")], done.stderr[-500:])
