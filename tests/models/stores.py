"""Stores of other programs, laid out as these programs lay them out."""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

PREFIX = "application/vnd.ollama.image."


@dataclass
class Stores:
    """The stores below one home folder."""

    home: Path

    @property
    def ollama(self):
        return self.home / ".ollama" / "models"

    def blob(self, content):
        data = content.read_bytes() if isinstance(content, Path) else content
        digest = hashlib.sha256(data).hexdigest()
        path = self.ollama / "blobs" / f"sha256-{digest}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def manifest(self, name):
        path = self.ollama / "manifests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def in_ollama(self, name, **layers):
        """A model of Ollama: `name` is HOST/NAMESPACE/MODEL/TAG, `layers` its layers by kind."""
        if name.count("/") == 1:
            name = f"registry.ollama.ai/library/{name}"
        digests = {kind: self.blob(content).name.replace("-", ":") for kind, content in layers.items()}
        found = [
            {"mediaType": PREFIX + kind, "digest": digest, "size": 1} for kind, digest in digests.items()
        ]
        self.manifest(name).write_text(json.dumps({"config": {"digest": "sha256:0"}, "layers": found}))

    def in_lm_studio(self, repo, file, content):
        return self._copy(self.home / ".lmstudio" / "models" / repo / file, content)

    def in_llama_cpp(self, file, content=b"{}"):
        return self._copy(self.home / ".cache" / "llama.cpp" / file, content)

    def in_hugging_face(self, repo, file, content, revision="abc"):
        """A file of the Hugging Face cache: a link in the folder of its revision leads to the blob."""
        folder = self.home / "hf" / "hub" / f"models--{repo.replace('/', '--')}"
        blob = self._copy(
            folder / "blobs" / hashlib.sha256(f"{revision}{file}".encode()).hexdigest(), content
        )
        link = folder / "snapshots" / revision / file
        link.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(blob, link)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(revision)
        return link

    @staticmethod
    def _copy(path, content):
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            shutil.copy(content, path)
        return path


def home_of_stores(folder, monkeypatch):
    """A home folder whose stores are empty."""
    for name in ("OLLAMA_MODELS", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    monkeypatch.setenv("LLAMA_CACHE", str(folder / ".cache" / "llama.cpp"))
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    return Stores(folder)
