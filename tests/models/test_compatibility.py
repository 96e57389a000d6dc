"""The rule for pairs is llama.cpp's own: compared with llama.cpp on real vocabularies, whole and cut."""

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import demo
from localspec.errors import IncompatiblePair
from localspec.gguf.header import HeaderVocabulary, header_at
from localspec.gguf.matching import VocabularyFacts, check, difference, vocabulary_of
from localspec.llama.library import lib
from localspec.models.names import find
from tests.gguf import vocabularies

CUT = sorted((Path(__file__).parent / "vocabularies").glob("*.gguf"))


def whole_vocabularies() -> list[Path]:
    """Those of llama-cpp-python's source distribution, where LOCALSPEC_LLAMA_SDIST says it is unpacked."""
    folder = Path(os.environ.get("LOCALSPEC_LLAMA_SDIST", "/nowhere")) / "vendor/llama.cpp/models"
    return sorted(folder.glob("ggml-vocab-*.gguf"))


class InLlamaCpp:
    """A vocabulary as llama.cpp sees it, and its rule written down once more with llama.cpp's own getters."""

    def __init__(self, path: Path) -> None:
        with vocabularies.vocabulary_of(path) as vocabulary:
            vocab = vocabulary._vocab
            self.kind = lib.llama_vocab_type(vocab)
            self.adds = (bool(lib.llama_vocab_get_add_bos(vocab)), bool(lib.llama_vocab_get_add_eos(vocab)))
            self.ids = (lib.llama_vocab_bos(vocab), lib.llama_vocab_eos(vocab))
            self.texts = [lib.llama_vocab_get_text(vocab, i) for i in range(vocabulary.size)]

    def accepts(self, draft: "InLlamaCpp") -> bool:
        added = zip(self.adds, self.ids, draft.ids, strict=True)
        return (
            (self.kind, self.adds) == (draft.kind, draft.adds)
            and all(ours == theirs for adds, ours, theirs in added if adds)
            and abs(len(self.texts) - len(draft.texts)) <= 128
            and all(ours == theirs for ours, theirs in list(zip(self.texts, draft.texts, strict=False))[5:])
        )


KINDS = {"SPM": 1, "BPE": 2, "WPM": 3, "UGM": 4, "RWKV": 5, "PLAMO2": 6}


def assert_agreement(paths: list[Path]) -> None:
    theirs = {path: InLlamaCpp(path) for path in paths}
    ours = {path: vocabulary_of(header_at(path)) for path in paths}
    for path in paths:
        vocabulary = ours[path]
        assert vocabulary is not None
        assert KINDS[vocabulary.kind] == theirs[path].kind, path
        assert (vocabulary.adds_bos, vocabulary.adds_eos) == theirs[path].adds, path
        assert (vocabulary.bos, vocabulary.eos) == theirs[path].ids, path
        assert vocabulary.count == len(theirs[path].texts), path
    for target, draft in itertools.product(paths, repeat=2):
        fits = difference(ours[target], ours[draft]) == ""
        assert fits == theirs[target].accepts(theirs[draft]), (target, draft)


def test_agrees_with_llama_cpp_on_cut_vocabularies():
    assert len(CUT) == 6
    assert_agreement(CUT)


@pytest.mark.skipif(not whole_vocabularies(), reason="LOCALSPEC_LLAMA_SDIST does not name an unpacked sdist")
def test_agrees_with_llama_cpp_on_whole_vocabularies():
    assert_agreement(whole_vocabularies())


@pytest.fixture
def facts(tiny_gguf) -> VocabularyFacts:
    return vocabulary_of(header_at(tiny_gguf(vocab_size=1024)))


def with_texts(facts: VocabularyFacts, texts: list[bytes]) -> VocabularyFacts:
    raw = b"".join(len(text).to_bytes(8, "little") + text for text in texts)
    return replace(facts, texts=HeaderVocabulary(len(texts), raw))


def test_128_tokens_more_are_fine_and_129_are_not(facts):
    texts = [*facts.texts.texts()]
    assert difference(facts, with_texts(facts, texts + [b"x%d" % i for i in range(128)])) == ""
    problem = difference(facts, with_texts(facts, texts + [b"x%d" % i for i in range(129)]))
    assert "1,024" in problem
    assert "1,153" in problem


def test_the_first_five_tokens_may_differ_and_the_sixth_may_not(facts):
    texts = [*facts.texts.texts()]
    assert difference(facts, with_texts(facts, [b"another"] * 5 + texts[5:])) == ""
    problem = difference(facts, with_texts(facts, [*texts[:5], b"another", *texts[6:]]))
    assert problem.startswith("token 5 is ")
    assert "'another' in the draft" in problem


def test_the_first_difference_is_named_and_texts_are_compared_as_c_strings(facts):
    texts = [*facts.texts.texts()]
    texts[700] += b"\0tail"
    assert difference(facts, with_texts(facts, texts)) == ""
    texts[700], texts[900] = b"seven", b"nine"
    assert difference(facts, with_texts(facts, texts)).startswith("token 700 ")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "SPM"}, "BPE, the draft's is SPM"),
        ({"adds_bos": True}, "only the draft adds its begin token"),
        ({"adds_eos": True}, "only the draft adds its end token"),
    ],
)
def test_other_differences_are_named(facts, change, says):
    assert says in difference(facts, replace(facts, **change))


def test_ids_matter_only_where_the_token_is_added(facts):
    moved = replace(facts, bos=7)
    assert difference(facts, moved) == ""
    what = f"the begin token is {facts.bos} in the target and 7 in the draft"
    assert difference(*(replace(each, adds_bos=True) for each in (facts, moved))) == what
    assert difference(facts, None) == "the draft has no vocabulary"


def test_files_are_checked_by_name(tiny_gguf):
    assert find(target=tiny_gguf(), draft=tiny_gguf(layers=1)).check() is None
    with pytest.raises(
        IncompatiblePair, match=r"demo-draft.gguf cannot draft for tiny.*only \d+% of the tokens"
    ):
        find(target=tiny_gguf(vocab="spm", vocab_size=300), draft=demo.draft_path()).check()


def test_a_draft_of_another_vocabulary_drafts_with_what_both_have(tiny_gguf):
    large, small = tiny_gguf(vocab_size=1024), tiny_gguf(vocab="spm", vocab_size=300)
    shared = check([header_at(large), header_at(small)])
    with vocabularies.vocabulary_of(large) as one, vocabularies.vocabulary_of(small) as other:
        ours, theirs = (
            [vocabulary.piece(token) or vocabulary.text(token).encode() for token in range(vocabulary.size)]
            for vocabulary in (one, other)
        )
    assert shared.count == len(set(shared.target_ids.tolist())) > 200
    for token, word in zip(shared.target_ids.tolist(), shared.draft_ids.tolist(), strict=True):
        assert ours[token] == theirs[word] or (token, word) == (1023, 2)  # both end a turn
    assert shared.coverage > 0.9


def test_a_header_is_parsed_once_while_the_file_does_not_change(tiny_gguf, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_gguf(vocab_size=1024).read_bytes())
    assert header_at(path) is header_at(path)
    path.write_bytes(tiny_gguf(vocab_size=600).read_bytes())
    assert header_at(path).vocabulary.count == 600
