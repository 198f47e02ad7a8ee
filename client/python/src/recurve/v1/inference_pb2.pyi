from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

CACHE_MISS_DISABLED: CacheMiss
CACHE_MISS_DIVERGED: CacheMiss
CACHE_MISS_EVICTED: CacheMiss
CACHE_MISS_NONE: CacheMiss
CACHE_MISS_SHORT: CacheMiss
CACHE_MISS_UNKNOWN: CacheMiss
CACHE_MISS_UNSPECIFIED: CacheMiss
DESCRIPTOR: _descriptor.FileDescriptor
FINISH_REASON_EOS: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_STOP_STRING: FinishReason
FINISH_REASON_STOP_TOKEN: FinishReason
FINISH_REASON_UNSPECIFIED: FinishReason
LOGITS_MODE_ALL: LogitsMode
LOGITS_MODE_NEXT: LogitsMode
LOGITS_MODE_NONE: LogitsMode

class Admitted(_message.Message):
    __slots__ = ["prompt_tokens", "queue_seconds", "request_id", "seed"]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    queue_seconds: float
    request_id: str
    seed: int
    def __init__(self, request_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., queue_seconds: _Optional[float] = ...) -> None: ...

class CacheUse(_message.Message):
    __slots__ = ["approximate", "cached_tokens", "diverged_at", "miss", "written_tokens"]
    APPROXIMATE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_AT_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    approximate: bool
    cached_tokens: int
    diverged_at: int
    miss: CacheMiss
    written_tokens: int
    def __init__(self, cached_tokens: _Optional[int] = ..., written_tokens: _Optional[int] = ..., miss: _Optional[_Union[CacheMiss, str]] = ..., diverged_at: _Optional[int] = ..., approximate: bool = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ["append_ids", "append_text", "cache_key", "from_state", "generate", "keep", "logits", "logprobs", "priority", "rollback_to", "sampling", "snapshot_at", "stopping"]
    APPEND_IDS_FIELD_NUMBER: _ClassVar[int]
    APPEND_TEXT_FIELD_NUMBER: _ClassVar[int]
    CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    FROM_STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_TO_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_AT_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    append_ids: TokenIds
    append_text: str
    cache_key: str
    from_state: str
    generate: int
    keep: bool
    logits: LogitsMode
    logprobs: int
    priority: int
    rollback_to: int
    sampling: SamplingParams
    snapshot_at: _containers.RepeatedScalarFieldContainer[int]
    stopping: StoppingParams
    def __init__(self, append_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., append_text: _Optional[str] = ..., generate: _Optional[int] = ..., logits: _Optional[_Union[LogitsMode, str]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., stopping: _Optional[_Union[StoppingParams, _Mapping]] = ..., priority: _Optional[int] = ..., logprobs: _Optional[int] = ..., cache_key: _Optional[str] = ..., snapshot_at: _Optional[_Iterable[int]] = ..., keep: bool = ..., rollback_to: _Optional[int] = ..., from_state: _Optional[str] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ["admitted", "done", "logits", "reason", "sequence_tokens", "stop_string", "tokens", "usage"]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    admitted: Admitted
    done: bool
    logits: _containers.RepeatedCompositeFieldContainer[Logits]
    reason: FinishReason
    sequence_tokens: int
    stop_string: str
    tokens: Tokens
    usage: Usage
    def __init__(self, admitted: _Optional[_Union[Admitted, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., logits: _Optional[_Iterable[_Union[Logits, _Mapping]]] = ..., done: bool = ..., sequence_tokens: _Optional[int] = ..., reason: _Optional[_Union[FinishReason, str]] = ..., stop_string: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ["reason", "stop_string", "timings", "usage"]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    stop_string: str
    timings: Timings
    usage: Usage
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., stop_string: _Optional[str] = ...) -> None: ...

class GenerateEvent(_message.Message):
    __slots__ = ["admitted", "finished", "prompt_logprobs", "sample", "tokens"]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    admitted: Admitted
    finished: Finished
    prompt_logprobs: PromptLogprobs
    sample: int
    tokens: Tokens
    def __init__(self, admitted: _Optional[_Union[Admitted, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ..., sample: _Optional[int] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ["cache_key", "from_state", "logprobs", "n", "priority", "prompt_ids", "prompt_logprobs", "prompt_text", "sampling", "snapshot_at", "stopping"]
    CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    FROM_STATE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TEXT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_AT_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    cache_key: str
    from_state: str
    logprobs: int
    n: int
    priority: int
    prompt_ids: TokenIds
    prompt_logprobs: int
    prompt_text: str
    sampling: SamplingParams
    snapshot_at: _containers.RepeatedScalarFieldContainer[int]
    stopping: StoppingParams
    def __init__(self, prompt_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., prompt_text: _Optional[str] = ..., from_state: _Optional[str] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., stopping: _Optional[_Union[StoppingParams, _Mapping]] = ..., priority: _Optional[int] = ..., logprobs: _Optional[int] = ..., cache_key: _Optional[str] = ..., snapshot_at: _Optional[_Iterable[int]] = ..., n: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ...) -> None: ...

class Logits(_message.Message):
    __slots__ = ["position", "values"]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    position: int
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, position: _Optional[int] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ["ids", "index", "logprobs"]
    IDS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    index: int
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, index: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ["frequency_penalty", "logit_bias", "min_p", "presence_penalty", "repetition_penalty", "seed", "temperature", "top_k", "top_p"]
    class LogitBiasEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    min_p: float
    presence_penalty: float
    repetition_penalty: float
    seed: int
    temperature: float
    top_k: int
    top_p: float
    def __init__(self, repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class StoppingParams(_message.Message):
    __slots__ = ["ignore_eos", "include_stop_str_in_output", "max_new_tokens", "min_tokens", "skip_special_tokens", "stop_strings", "stop_token_ids"]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_STR_IN_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    max_new_tokens: int
    min_tokens: int
    skip_special_tokens: bool
    stop_strings: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, max_new_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., stop_strings: _Optional[_Iterable[str]] = ..., ignore_eos: bool = ..., min_tokens: _Optional[int] = ..., include_stop_str_in_output: bool = ..., skip_special_tokens: bool = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ["queue_seconds", "time_to_first_token_seconds", "total_seconds"]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    queue_seconds: float
    time_to_first_token_seconds: float
    total_seconds: float
    def __init__(self, queue_seconds: _Optional[float] = ..., time_to_first_token_seconds: _Optional[float] = ..., total_seconds: _Optional[float] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ["ids"]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ["logprob", "top"]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TopLogprob]
    def __init__(self, logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TopLogprob, _Mapping]]] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ["ids", "index", "logprobs", "text"]
    IDS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    index: int
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    text: str
    def __init__(self, index: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class TopLogprob(_message.Message):
    __slots__ = ["id", "logprob"]
    ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    id: int
    logprob: float
    def __init__(self, id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ["cache", "completion_tokens", "preemptions", "prompt_tokens"]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    cache: CacheUse
    completion_tokens: int
    preemptions: int
    prompt_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., preemptions: _Optional[int] = ..., cache: _Optional[_Union[CacheUse, _Mapping]] = ...) -> None: ...

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class CacheMiss(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class LogitsMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
