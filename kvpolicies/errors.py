"""What goes wrong with a policy, said in one sentence."""


class PolicyError(ValueError):
    """A policy cannot be built or run as asked; the message names what and why."""

    @property
    def sentence(self) -> str:
        """The message, which is a clause, as a sentence; a name in front stays as it is."""
        text = str(self).rstrip(".")
        named = not text.partition(" ")[0].isalpha()  # window_attention, budget=3
        return f"{text if named else text[:1].upper() + text[1:]}."


class MissingInput(PolicyError):
    """A policy needs something that this trace or model does not have.

    `missing` is one of the words of `Score.needs`, for a caller that can record it.
    """

    def __init__(self, missing: str, message: str) -> None:
        super().__init__(message)
        self.missing = missing
