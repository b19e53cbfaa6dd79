"""Streams a model's reply to the readers of an answer while the model writes it."""

from collections.abc import Callable

#: Gets new text of a reply, and whether it restarts, so that earlier text is void.
#: Called on the event loop; it returns at once and raises nothing.
OnText = Callable[[str, bool], None]


class StreamedReply:
    """Tracks the streamed text of a reply; that of a failed try is void when the next begins."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._text = ""
        self._is_void = False

    def begin(self) -> None:
        """Begins a try."""
        self._is_void = bool(self._text)

    def more(self, text: str) -> None:
        """Streams text that the model wrote."""
        if text:
            self.heard(text, restarts=self._is_void)

    def again(self) -> OnText:
        """Begins an executor's call; returns what streams its text."""
        self.begin()
        return lambda text, restarts: self.heard(text, restarts or self._is_void)

    def heard(self, text: str, restarts: bool) -> None:
        """Streams text that an executor reported."""
        self._text = text if restarts else self._text + text
        self._is_void = False
        self._on_text(text, restarts)

    def whole(self, text: str) -> None:
        """Streams what is missing of a complete reply."""
        if not text.startswith(self._text):
            self.heard(text, restarts=True)
        elif rest := text[len(self._text) :]:
            self.heard(rest, restarts=False)
