"""What each route answers, for /openapi.json: the type of the whole answer, and of a stream's pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from radixrt.backend import Tokens
from radixrt.results import CacheView, Delta, Generation, Pin, Scores, Selection
from radixrt.segments import ProgramEvent
from radixrt.server import anthropic_types, ollama_embed, ollama_types, responses_types
from radixrt.server.cache import Flushed
from radixrt.server.models import Model, ModelList
from radixrt.server.native_types import Decoded, ServerInfo
from radixrt.server.openai_embeddings import EmbeddingList
from radixrt.server.openai_shapes import ChatChunk, ChatCompletion, TextCompletion
from radixrt.server.ops import AbortAnswer, Status
from radixrt.server.program_types import ProgramAnswer
from radixrt.server.systemone import SystemOneAnswer
from radixrt.server.tokens import DetokenizeAnswer, TokenizeAnswer

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"


@dataclass(frozen=True)
class Answer:
    """The 200 of a route: JSON of type `whole`, or another media type's text where that is None."""

    whole: Any = None
    media: str = "application/json"
    pieces: tuple[Any, ...] = ()
    """What an event or line of a streamed answer may hold, beside an error; () where the route does not stream."""
    stream: str = EVENTS
    also: tuple[int, ...] = ()
    """Other statuses that carry the same JSON."""
    query: tuple[str, ...] = ()
    """Names of optional query parameters, all texts."""


ANSWERS: dict[tuple[str, str], Answer] = {
    ("GET", "/v1/models"): Answer(ModelList),
    ("GET", "/v1/models/{model_id:path}"): Answer(Model),
    ("POST", "/v1/chat/completions"): Answer(ChatCompletion, pieces=(ChatChunk,)),
    ("POST", "/v1/completions"): Answer(TextCompletion, pieces=(TextCompletion,)),
    ("POST", "/v1/embeddings"): Answer(EmbeddingList),
    ("POST", "/v1/select"): Answer(Selection),
    ("POST", "/v1/programs"): Answer(ProgramAnswer, pieces=(ProgramEvent,)),
    ("POST", "/v1/systemone"): Answer(SystemOneAnswer),
    ("POST", "/v1/responses"): Answer(responses_types.Response, pieces=(responses_types.StreamEvent,)),
    ("GET", "/v1/responses/{response_id}"): Answer(responses_types.Response),
    ("DELETE", "/v1/responses/{response_id}"): Answer(responses_types.Deleted),
    ("GET", "/v1/responses/{response_id}/input_items"): Answer(responses_types.InputItems),
    ("POST", "/v1/messages"): Answer(
        anthropic_types.OutMessage, pieces=(anthropic_types.StreamEvent, anthropic_types.EndEvent)
    ),
    ("POST", "/v1/messages/count_tokens"): Answer(anthropic_types.TokenCount),
    ("POST", "/api/chat"): Answer(ollama_types.Answer, pieces=(ollama_types.Answer,), stream=LINES),
    ("POST", "/api/generate"): Answer(ollama_types.Answer, pieces=(ollama_types.Answer,), stream=LINES),
    ("GET", "/api/tags"): Answer(ollama_types.Models),
    ("GET", "/api/ps"): Answer(ollama_types.Models),
    ("POST", "/api/show"): Answer(ollama_types.Shown),
    ("GET", "/api/version"): Answer(ollama_types.Version),
    ("POST", "/api/embed"): Answer(ollama_embed.EmbedAnswer),
    ("POST", "/api/embeddings"): Answer(ollama_embed.EmbeddingsAnswer),
    ("POST", "/tokenize"): Answer(TokenizeAnswer),
    ("POST", "/detokenize"): Answer(DetokenizeAnswer),
    ("POST", "/generate"): Answer(Generation, pieces=(Delta,)),
    ("POST", "/score"): Answer(Scores),
    ("POST", "/encode"): Answer(Tokens),
    ("POST", "/decode"): Answer(Decoded),
    ("GET", "/"): Answer(media="text/html"),
    ("GET", "/page.css"): Answer(media="text/css"),
    ("GET", "/page.js"): Answer(media="text/javascript"),
    ("POST", "/apply-template"): Answer(DetokenizeAnswer),
    ("POST", "/abort"): Answer(AbortAnswer),
    ("GET", "/health"): Answer(Status, also=(503,)),
    ("GET", "/ready"): Answer(Status, also=(503,)),
    ("GET", "/metrics"): Answer(media="text/plain"),
    ("GET", "/server_info"): Answer(ServerInfo),
    ("GET", "/cache"): Answer(CacheView, query=("cache_salt",)),
    ("POST", "/flush_cache"): Answer(Flushed),
    ("POST", "/v1/cache/pin"): Answer(Pin),
    ("POST", "/v1/cache/unpin"): Answer(Pin),
}
