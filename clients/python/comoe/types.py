"""What a completion is made of. Times are seconds."""

import dataclasses
from typing import Dict, List, Optional


@dataclasses.dataclass(frozen=True)
class Usage:
    """In tokens."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0

    @property
    def total_tokens(self):
        return self.prompt_tokens + self.completion_tokens

    @classmethod
    def of(cls, message):
        return cls(message.prompt_tokens, message.completion_tokens, message.cached_prompt_tokens)


@dataclasses.dataclass(frozen=True)
class Timing:
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    time_to_first_token_s: float = 0.0
    expert_stall_s: float = 0.0
    preemptions: int = 0

    @classmethod
    def of(cls, message):
        def seconds(duration):
            return duration.seconds + duration.nanos * 1e-9
        return cls(seconds(message.queue), seconds(message.prefill), seconds(message.decode),
                   seconds(message.time_to_first_token), seconds(message.expert_stall), message.preemptions)


@dataclasses.dataclass(frozen=True)
class Token:
    """A token with what was asked for of it."""
    id: Optional[int]  # None if return_token_ids=False
    logprob: Optional[float] = None
    top: Dict[int, float] = dataclasses.field(default_factory=dict)  # alternatives, the likeliest first
    piece: Optional[bytes] = None  # its own bytes


def tokens_of(message):
    """The tokens of a Delta or a Choice."""
    tokens = []
    # Each of the three lists is empty unless it was asked for.
    for i in range(max(len(message.token_ids), len(message.logprobs), len(message.token_pieces))):
        entry = message.logprobs[i] if i < len(message.logprobs) else None
        tokens.append(Token(
            message.token_ids[i] if i < len(message.token_ids) else None,
            entry.logprob if entry else None,
            {top.token_id: top.logprob for top in entry.top} if entry else {},
            message.token_pieces[i] if i < len(message.token_pieces) else None))
    return tokens


def prompt_tokens_of(entries):
    """Of PromptLogprobEntry; the first token has no log-probability."""
    return [Token(entry.token_id, entry.logprob if entry.HasField("logprob") else None,
                  {top.token_id: top.logprob for top in entry.top}) for entry in entries]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """What came since the last one."""
    text: str
    tokens: List[Token]
    index: int = 0  # which of n completions
    usage: Optional[Usage] = None


@dataclasses.dataclass
class Choice:
    """One completion. finish_reason: "stop_eos", "stop_string", "max_tokens", ..., "" while it runs."""
    index: int = 0
    text: str = ""
    tokens: List[Token] = dataclasses.field(default_factory=list)
    finish_reason: str = ""
    stop_string: Optional[str] = None
    stop_token_id: Optional[int] = None

    def finish(self, message, reason):
        self.finish_reason = reason
        matched = message.WhichOneof("matched")
        if matched is not None:
            setattr(self, matched, getattr(message, matched))


@dataclasses.dataclass
class Completion:
    """An answer: one choice unless n asked for more. text, tokens and finish_reason are the first choice's."""
    request_id: str = ""
    model: str = ""
    seed: int = 0
    choices: List[Choice] = dataclasses.field(default_factory=list)
    usage: Usage = Usage()
    timing: Optional[Timing] = None
    prompt: List[Token] = dataclasses.field(default_factory=list)  # only if prompt_logprobs asked for it

    def choice(self, index):
        while len(self.choices) <= index:
            self.choices.append(Choice(len(self.choices)))
        return self.choices[index]

    def _first(self):
        return self.choices[0] if self.choices else Choice()

    @property
    def text(self):
        return self._first().text

    @property
    def tokens(self):
        return self._first().tokens

    @property
    def finish_reason(self):
        return self._first().finish_reason
