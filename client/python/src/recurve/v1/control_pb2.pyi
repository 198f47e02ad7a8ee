from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class AbortRequest(_message.Message):
    __slots__ = ["request_id"]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ["remaining"]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    remaining: int
    def __init__(self, remaining: _Optional[int] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Load(_message.Message):
    __slots__ = ["busy", "generation_tokens_total", "num_requests_running", "num_requests_waiting", "open_streams", "own", "preemptions_total", "prompt_tokens_total", "state_slots_total", "state_slots_used", "steps_total", "tpa_pages_total", "tpa_pages_used"]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    OPEN_STREAMS_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STATE_SLOTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STATE_SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    STEPS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TPA_PAGES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TPA_PAGES_USED_FIELD_NUMBER: _ClassVar[int]
    busy: float
    generation_tokens_total: int
    num_requests_running: int
    num_requests_waiting: int
    open_streams: int
    own: bool
    preemptions_total: int
    prompt_tokens_total: int
    state_slots_total: int
    state_slots_used: int
    steps_total: int
    tpa_pages_total: int
    tpa_pages_used: int
    def __init__(self, num_requests_running: _Optional[int] = ..., num_requests_waiting: _Optional[int] = ..., state_slots_used: _Optional[int] = ..., state_slots_total: _Optional[int] = ..., tpa_pages_used: _Optional[int] = ..., tpa_pages_total: _Optional[int] = ..., prompt_tokens_total: _Optional[int] = ..., generation_tokens_total: _Optional[int] = ..., preemptions_total: _Optional[int] = ..., steps_total: _Optional[int] = ..., open_streams: _Optional[int] = ..., busy: _Optional[float] = ..., own: bool = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ["bos_token_id", "cache_bytes_per_token", "default_max_new_tokens", "eos_token_ids", "family", "hidden_size", "max_model_len", "max_prompt_tokens", "mixers", "name", "num_layers", "parameters", "state_bytes_per_sequence", "tokenizer", "vocab_size", "weight_bytes"]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIXERS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_PER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    bos_token_id: int
    cache_bytes_per_token: int
    default_max_new_tokens: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    family: str
    hidden_size: int
    max_model_len: int
    max_prompt_tokens: int
    mixers: _containers.RepeatedScalarFieldContainer[str]
    name: str
    num_layers: int
    parameters: int
    state_bytes_per_sequence: int
    tokenizer: str
    vocab_size: int
    weight_bytes: int
    def __init__(self, name: _Optional[str] = ..., family: _Optional[str] = ..., parameters: _Optional[int] = ..., num_layers: _Optional[int] = ..., hidden_size: _Optional[int] = ..., vocab_size: _Optional[int] = ..., mixers: _Optional[_Iterable[str]] = ..., max_model_len: _Optional[int] = ..., default_max_new_tokens: _Optional[int] = ..., tokenizer: _Optional[str] = ..., bos_token_id: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., weight_bytes: _Optional[int] = ..., cache_bytes_per_token: _Optional[int] = ..., state_bytes_per_sequence: _Optional[int] = ..., max_prompt_tokens: _Optional[int] = ...) -> None: ...

class ServerInfo(_message.Message):
    __slots__ = ["device", "draining", "kv_dtype", "max_num_batched_tokens", "max_num_seqs", "max_queued_requests", "page_tokens", "state_dtype", "tpa_pages", "uptime_seconds", "version", "weight_dtype"]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STATE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    TPA_PAGES_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DTYPE_FIELD_NUMBER: _ClassVar[int]
    device: str
    draining: bool
    kv_dtype: str
    max_num_batched_tokens: int
    max_num_seqs: int
    max_queued_requests: int
    page_tokens: int
    state_dtype: str
    tpa_pages: int
    uptime_seconds: float
    version: str
    weight_dtype: str
    def __init__(self, version: _Optional[str] = ..., device: _Optional[str] = ..., weight_dtype: _Optional[str] = ..., state_dtype: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., max_queued_requests: _Optional[int] = ..., tpa_pages: _Optional[int] = ..., page_tokens: _Optional[int] = ..., uptime_seconds: _Optional[float] = ..., draining: bool = ...) -> None: ...
