"""What every endpoint needs: the model's parts, the engine's worker, the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from k3stack import __version__
from k3stack.errors import InputError
from k3stack.guard.refused import RefusedError
from k3stack.reference.constraint import Constraint, Grammars
from k3stack.reference.server.eyes import Eyes, SeenImage
from k3stack.reference.server.metrics import Metrics
from k3stack.reference.server.pictures import read_images
from k3stack.reference.server.settings import ServerSettings
from k3stack.reference.tokenizer import Tokenizer
from k3stack.reference.worker import Worker

__all__ = ["Host"]


@dataclass(frozen=True, slots=True)
class Host:
    """What every endpoint needs.

    Attributes:
        eyes: what sees images; None: the model has no vision tower.
    """

    settings: ServerSettings
    tokenizer: Tokenizer
    grammars: Grammars
    worker: Worker
    metrics: Metrics
    eyes: Eyes | None = None

    @property
    def fingerprint(self) -> str:
        """What answered, and whether it means anything."""
        return f"k3stack-{__version__}{'-random-weights' if self.settings.random_weights else ''}"

    def check_model(self, name: str | None) -> None:
        """Refuse a request for another model.

        Raises:
            RefusedError: with 404.
        """
        if name is not None and name != self.settings.model:
            hint = f"Ask for {self.settings.model!r}"
            raise RefusedError(f"the model {name!r} does not exist", where="model", hint=hint, status=404)

    async def constraint(self, grammar: str | None, most: int) -> Constraint | None:
        """Follow a grammar; compiled off the event loop.

        Raises:
            RefusedError: it cannot be compiled, most often for something in a JSON schema.
        """
        if grammar is None:
            return None
        try:
            return await asyncio.to_thread(self.grammars.start, grammar, most)
        except InputError as error:
            raise RefusedError(error.what, where=error.where or "schema") from None

    async def images(self, messages: Sequence[Any]) -> list[SeenImage]:
        """The images of a chat as vectors; fetched, decoded and embedded off the event loop.

        Raises:
            RefusedError: an image that cannot be had, or a model that does not see.
        """
        settings = self.settings
        seconds = settings.fetch_s if settings.fetch_images else None
        pixels = await asyncio.to_thread(read_images, messages, settings.images, seconds)
        if not pixels:
            return []
        if self.eyes is None:
            raise RefusedError("this model takes no images", where="messages")
        return await asyncio.to_thread(self.eyes.see, pixels)
