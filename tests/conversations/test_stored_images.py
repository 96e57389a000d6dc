"""A stored conversation keeps its newest images."""

from localspec.conversations import conversations
from localspec.conversations.conversations import Conversation, StoredMessage
from localspec.prompt.images import PLACE, Image
from tests.tiny_images import pictures


def test_the_oldest_images_give_way_to_their_names(tmp_path, monkeypatch):
    data = pictures()["square.png"]
    monkeypatch.setattr(conversations, "MOST_IMAGE_BYTES", 2 * len(data))
    asked = [StoredMessage("user", f"{PLACE}and this", images=(Image(data, f"{n}.png"),)) for n in range(3)]
    talk = Conversation("a", messages=tuple(asked))
    conversations.save(tmp_path, talk)
    first, *rest = conversations.read(tmp_path, "a").messages
    assert (first.content, first.images) == ("[0.png, 64 x 64 pixels]and this", ())
    assert rest == asked[1:]
