"""Streams what a model writes, while it writes, to the listeners of an answer."""

from collections.abc import Callable

#: Gets new text of a reply, and whether it begins anew: what was streamed before is void.
#: Called on the event loop; it returns at once and raises nothing.
OnText = Callable[[str, bool], None]


class StreamedReply:
    """What was streamed of a call's reply; a try that failed is void when the next one begins."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._text = ""
        self._is_void = False

    def begin(self) -> None:
        """The model is asked, perhaps anew."""
        self._is_void = bool(self._text)

    def more(self, text: str) -> None:
        """The model wrote `text`."""
        if text:
            self.heard(text, restarts=self._is_void)

    def again(self) -> OnText:
        """Starts a call, perhaps not the first one: what it streams goes on here."""
        self.begin()
        return self._of_a_client

    def _of_a_client(self, text: str, restarts: bool) -> None:
        self.heard(text, restarts or self._is_void)

    def heard(self, text: str, restarts: bool) -> None:
        """Another process heard what the model wrote."""
        self._text = text if restarts else self._text + text
        self._is_void = False
        self._on_text(text, restarts)

    def whole(self, text: str) -> None:
        """The reply is there: `text` is all of it, wherever it comes from."""
        if not text.startswith(self._text):
            self.heard(text, restarts=True)
        elif rest := text[len(self._text) :]:
            self.heard(rest, restarts=False)
