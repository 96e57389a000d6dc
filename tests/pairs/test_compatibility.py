"""The rule for pairs is llama.cpp's own: compared with llama.cpp on real vocabularies, whole and cut."""

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import demo
from localspec.errors import IncompatiblePair
from localspec.gguf.facts import VocabularyFacts, vocabulary_of
from localspec.gguf.header import HeaderVocabulary, header_at
from localspec.gguf.matching import check, differences
from localspec.models.names import find

CUT = sorted((Path(__file__).parent / "vocabularies").glob("*.gguf"))


def whole_vocabularies() -> list[Path]:
    """Those of llama-cpp-python's source distribution, where LOCALSPEC_LLAMA_SDIST says it is unpacked."""
    folder = Path(os.environ.get("LOCALSPEC_LLAMA_SDIST", "/nowhere")) / "vendor/llama.cpp/models"
    return sorted(folder.glob("ggml-vocab-*.gguf"))


class InLlamaCpp:
    """A vocabulary as llama.cpp sees it, and its rule written down once more with llama.cpp's own getters."""

    def __init__(self, path: Path) -> None:
        from localspec.llama.library import lib
        from tests.gguf.loaded import vocabulary_of

        with vocabulary_of(path) as vocabulary:
            vocab = vocabulary._vocab
            self.kind = lib.llama_vocab_type(vocab)
            self.adds = (bool(lib.llama_vocab_get_add_bos(vocab)), bool(lib.llama_vocab_get_add_eos(vocab)))
            self.ids = (lib.llama_vocab_bos(vocab), lib.llama_vocab_eos(vocab))
            self.texts = [lib.llama_vocab_get_text(vocab, i) for i in range(vocabulary.size)]

    def accepts(self, draft: "InLlamaCpp") -> bool:
        if self.kind != draft.kind or self.adds != draft.adds:
            return False
        if any(
            added and ours != theirs
            for added, ours, theirs in zip(self.adds, self.ids, draft.ids, strict=True)
        ):
            return False
        if abs(len(self.texts) - len(draft.texts)) > 128:
            return False
        return all(ours == theirs for ours, theirs in list(zip(self.texts, draft.texts, strict=False))[5:])


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
        assert (differences(ours[target], ours[draft]) == []) == theirs[target].accepts(theirs[draft]), (
            target,
            draft,
        )


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


def texts_of(facts: VocabularyFacts) -> list[bytes]:
    return list(facts.texts.texts())


def test_a_model_fits_itself(facts):
    assert differences(facts, facts) == []


def test_128_tokens_more_are_fine_and_129_are_not(facts):
    texts = texts_of(facts)
    assert differences(facts, with_texts(facts, texts + [b"x%d" % i for i in range(128)])) == []
    (problem,) = differences(facts, with_texts(facts, texts + [b"x%d" % i for i in range(129)]))
    assert "1,024" in problem
    assert "1,153" in problem


def test_the_first_five_tokens_may_differ_and_the_sixth_may_not(facts):
    texts = texts_of(facts)
    assert differences(facts, with_texts(facts, [b"another"] * 5 + texts[5:])) == []
    (problem,) = differences(facts, with_texts(facts, [*texts[:5], b"another", *texts[6:]]))
    assert problem.startswith("token 5 is ")
    assert "'another' in the draft" in problem


def test_the_first_difference_is_the_one_that_is_named(facts):
    texts = texts_of(facts)
    texts[700], texts[900] = b"seven", b"nine"
    (problem,) = differences(facts, with_texts(facts, texts))
    assert problem.startswith("token 700 ")


def test_texts_are_compared_as_c_strings(facts):
    texts = texts_of(facts)
    texts[700] += b"\0tail"
    assert differences(facts, with_texts(facts, texts)) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "SPM"}, "BPE, the draft's is SPM"),
        ({"adds_bos": True}, "the draft puts a begin token"),
        ({"adds_eos": True}, "the draft puts an end token"),
    ],
)
def test_other_differences_are_named(facts, change, says):
    other = replace(facts, **change)
    assert any(says in problem for problem in differences(facts, other))


def test_ids_matter_only_where_the_token_is_added(facts):
    moved = replace(facts, bos=7)
    assert differences(facts, moved) == []
    adding = replace(facts, adds_bos=True)
    adding_moved = replace(facts, adds_bos=True, bos=7)
    assert differences(adding, adding_moved) == [
        f"the begin token is {facts.bos} in the target and 7 in the draft"
    ]


def test_a_model_without_a_vocabulary_is_no_draft(facts):
    assert differences(facts, None) == ["the draft has no vocabulary"]


def test_files_are_checked_by_name(tiny_gguf):
    assert find(target=tiny_gguf(), draft=tiny_gguf(layers=1)).check() is None
    with pytest.raises(
        IncompatiblePair, match=r"demo-draft.gguf cannot draft for tiny.*only \d+% of the tokens"
    ):
        find(target=tiny_gguf(vocab="spm", vocab_size=300), draft=demo.draft_path()).check()


def test_a_draft_of_another_vocabulary_drafts_with_what_both_have(tiny_gguf):
    large, small = tiny_gguf(vocab_size=1024), tiny_gguf(vocab="spm", vocab_size=300)
    shared = check([header_at(large), header_at(small)])
    ours, theirs = (list(bytes_of_tokens(path)) for path in (large, small))
    assert shared.count == len(set(shared.target_ids.tolist())) > 200
    for token, word in zip(shared.target_ids.tolist(), shared.draft_ids.tolist(), strict=True):
        assert ours[token] == theirs[word] or (token, word) == (1023, 2)  # both end a turn
    assert shared.coverage > 0.9


def bytes_of_tokens(path):
    """The bytes of every token, as llama.cpp has them; the text of control tokens."""
    from tests.gguf.loaded import vocabulary_of

    with vocabulary_of(path) as vocabulary:
        for token in range(vocabulary.size):
            yield vocabulary.piece(token) or vocabulary.text(token).encode()


def test_a_header_is_parsed_once_while_the_file_does_not_change(tiny_gguf):
    path = tiny_gguf(vocab_size=600)
    assert header_at(path) is header_at(path)


def test_a_header_is_read_again_when_the_file_changed(tiny_gguf, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_gguf(vocab_size=1024).read_bytes())
    assert header_at(path).vocabulary.count == 1024
    path.write_bytes(tiny_gguf(vocab_size=600).read_bytes())
    assert header_at(path).vocabulary.count == 600
