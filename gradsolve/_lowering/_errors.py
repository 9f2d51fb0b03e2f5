"""What the lowering says when it cannot translate a function."""


class LoweringError(NotImplementedError):
    """A traced function that has no C++ text; the message is one sentence for its author."""


class UnsupportedPrimitiveError(LoweringError):
    """A primitive, or one of its parameters or dtypes, has no lowering."""


class TooLargeError(LoweringError):
    """The function has more scalar operations than are worth unrolling."""


class Refused(Exception):
    """Raised by a rule: how the sentence that begins "The primitive `name`" goes on.

    The walker knows the name and the place in the user's code, and makes a `LoweringError` of it.
    """

    def __init__(self, predicate: str, error: type[LoweringError] = UnsupportedPrimitiveError):
        super().__init__(predicate)
        self.predicate = predicate
        self.error = error
